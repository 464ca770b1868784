"""Recovery at its edges: deaths between two words, confirmations that are lost, jobs that overlap."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import optax
import pytest
from tests.programs import until
from tests.ps.jobs import FAST, PARAMS, FakeClock, Job, first_values, in_thread, kill
from tests.ps.plans import plan_of
from tests.ps.test_replication import QUICK, kill_ps, make, push, replicated, stand_quite_still, standbys
from tests.ps.test_steering import FIRST, RATE, SECOND, require, steerable

from trainband.cluster import ClusterSpec
from trainband.cluster.credentials import NO_CREDENTIALS
from trainband.cluster.identity import Identity
from trainband.errors import Refused, StreamClosed, Unreachable
from trainband.job.checkpoints import RestoreFrom
from trainband.ps.replication.replicator.recruiter import Recruiter
from trainband.ps.rules import Sync
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.exchange import Exchange
from trainband.ps.worker.heartbeater import URGENT_S
from trainband.ps.worker.shard_link import Link
from trainband.ps.worker.urgency import SILENT_BEATS
from trainband.runtime import SystemRuntime, Thread
from trainband.wire.memory.transport import MemoryTransport
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r
from trainband.wire.messages.replication import arbiter_name
from trainband.wire.network import Network
from trainband.wire.transport import Connection, Listener, Timeouts

__all__ = ["make"]  # the fixture

NO_CHECKPOINTS = RestoreFrom(candidates=lambda: iter(()), worker_state=lambda _: {})


def one_worker(job: Job, plan: Any) -> tuple[JobClient, Exchange]:
    """It has joined and begun, and both shards have their standbys: (the worker, what it has)."""
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 100)
    until(lambda: standbys(job.said) == 2, "the standbys")
    return client, now


def two_workers(job: Job, plan: Any, restore: RestoreFrom | None = None) -> tuple[JobClient, JobClient, Exchange]:
    """Both have joined and begun: (the chief, the other, what the other has)."""
    chief, other = job.client(plan, 0), job.client(plan, 1)
    joined = in_thread(lambda: chief.join(first_values(plan, PARAMS), restore), "chief")
    now = other.join(first_values(plan, PARAMS), restore)
    joined.result(20)
    chief.training.await_training(1, 100)
    other.training.await_training(1, 100)
    return chief, other, now


def arbiters(job: Job) -> set[str]:
    """Whom the replicas, primaries and standbys, would ask who goes on."""
    return {replica.failover.term.arbiter for service in job.services for replica in service.replicas.by_shard.values()}


def test_after_the_chief_has_died_for_good_another_brings_a_ps_back(make: Callable[..., Job]) -> None:
    plan = steerable()
    job = make(ps=2, workers=2)
    chief, other, now = two_workers(job, plan, NO_CHECKPOINTS)
    now = push(other, plan, now)
    kill(chief)
    until(lambda: other.peers.is_chief, "the successor")
    kill_ps(job, 1)
    job.start_ps(1)
    now = push(other, plan, now)
    assert now.versions == (2, 0)  # the first values again, which never saw the worker that the spec calls the chief
    assert other.peers.is_chief
    other.training.finish()
    other.leave()


def test_a_ps_that_comes_back_does_not_wait_for_one_whose_data_is_used_up(make: Callable[..., Job]) -> None:
    """Such as a chief that waits for the others to end: neither for its gradient nor for its piece of shared data."""
    plan = plan_of(PARAMS, optax.sgd(0.1), ps=1, rule=Sync())
    job = make(ps=1, workers=2)
    chief, other, now = two_workers(job, plan, NO_CHECKPOINTS)
    chief.training.pause()
    now = push(other, plan, now)
    kill_ps(job, 0)
    job.start_ps(0)
    now = push(other, plan, now)  # lost with the ps
    assert now.versions == (0,)
    now = in_thread(lambda: push(other, plan, now), "push").result(20.0)
    assert (now.versions, now.applied) == ((1,), True)
    assert chief.peers.at_work() == ("worker:1",)
    assert other.peers.at_work() == ()
    for client in (other, chief):
        client.leave()


def test_a_standby_that_takes_over_knows_that_the_chief_is_gone(make: Callable[..., Job]) -> None:
    plan = steerable(standbys=1)
    job = make(ps=2, workers=2)
    chief, other, now = two_workers(job, plan)
    until(lambda: standbys(job.said) == 2, "the standbys")
    kill(chief)
    until(lambda: other.peers.is_chief, "the successor")
    decides = arbiter_name(other.membership.incarnation)
    until(lambda: arbiters(job) == {decides}, "its being the arbiter: shard 1 has nobody else to let ps:0 lead")
    kill_ps(job, 1)
    now = push(other, plan, now)
    before = standbys(job.said)
    job.start_ps(1)
    until(lambda: standbys(job.said) == before + 2, "the standbys that came back")
    kill_ps(job, 0)
    now = push(other, plan, now)
    until(lambda: other.peers.is_chief, "the successor, by the word of the ps that has taken over")
    other.training.finish()
    other.leave()


def test_a_number_that_was_set_outlives_its_ps(make: Callable[..., Job]) -> None:
    """Acknowledged, it is on the standby."""
    plan = steerable(standbys=1)
    job = make(ps=2, workers=1)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 10)
    until(lambda: standbys(job.said) == 2, "the standbys")
    now = push(client, plan, now)
    client.training.steer({RATE: SECOND})
    kill_ps(job, 0)
    now = push(client, plan, now)
    require(plan, now.params, FIRST + SECOND)
    client.leave()


def test_a_revived_ps_has_the_number_before_any_update(make: Callable[..., Job]) -> None:
    plan = steerable()
    job = make(ps=2, workers=2)
    chief, other, now = two_workers(job, plan, NO_CHECKPOINTS)
    chief.training.steer({RATE: 0.0})
    kill_ps(job, 1)
    job.start_ps(1)
    for _ in range(3):  # while the chief's main thread does something else
        now = push(other, plan, now)
    require(plan, now.params, 0.0)
    assert not any("stream broke off" in line for line in job.said), "who brought the ps back has not gone by that"
    other.leave()
    chief.leave()


def test_a_bad_name_leaves_nothing_behind(make: Callable[..., Job]) -> None:
    plan = steerable()
    job = make(ps=2, workers=1)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 10)
    with pytest.raises(Exception, match="no number 'momentum'"):
        client.training.steer({"momentum": 0.5})
    client.training.steer({RATE: SECOND})
    now = push(client, plan, now)
    require(plan, now.params, SECOND)
    client.leave()


@pytest.mark.parametrize("silent", [0, 1], ids=["its primary", "its standby"])
def test_a_question_outlasts_a_ps_that_is_silent(make: Callable[..., Job], silent: int) -> None:
    """As by default, a call's deadline is as long as the lease, and ends before anybody takes over."""
    plan = replicated()
    job = make(ps=2, workers=1, timeouts=replace(QUICK, lease_s=4.0, call_s=4.0))
    client, now = one_worker(job, plan)
    push(client, plan, now)
    with job.services[silent].task.lock:  # as if its machine stood still
        client.training._requests.ask(client._links[0], "pause", m.Pause(-1, ""), m.JobState)  # noqa: SLF001
    client.leave()


def test_a_silent_ps_is_not_asked_for_whom_it_waits(make: Callable[..., Job]) -> None:
    """Each question would last a heartbeat, and the worker go on with the successor so much later."""
    plan = replicated()
    job = make(ps=2, workers=1, timeouts=replace(QUICK, heartbeat_s=0.2))
    client, now = one_worker(job, plan)
    link = client._links[0]  # noqa: SLF001
    silences: list[float] = []
    call = link.call

    def noted(action: str, *arguments: Any) -> Any:
        if action == "state" and link.ps == 0:
            silences.append(client._cluster_view.silent_s(0))  # noqa: SLF001
        return call(action, *arguments)

    link.call = noted  # type: ignore[method-assign, assignment]
    again = threading.Event()
    stand_quite_still(job.services[0], again)
    now = push(client, plan, now)
    again.set()
    client.leave()
    assert now.versions == (1, 1)
    assert [silence for silence in silences if silence > 1.0] == []


def test_while_a_ps_is_silent_its_heir_is_asked_often(make: Callable[..., Job]) -> None:
    """A stream hears nothing of one that stands still: who waits there cannot say so."""
    plan = replicated()
    clock = FakeClock()
    timeouts = replace(FAST, heartbeat_s=1.0)
    job = make(ps=2, workers=1, timeouts=timeouts, runtime=SystemRuntime(clock))
    client, _ = one_worker(job, plan)
    heartbeater = client._heartbeats.heartbeaters[1]  # noqa: SLF001
    waits: list[float] = []
    wait = heartbeater._wake.wait  # noqa: SLF001

    def noted(timeout_s: float) -> bool:
        waits.append(timeout_s)
        return wait(timeout_s)

    heartbeater._wake.wait = noted  # type: ignore[assignment, method-assign]  # noqa: SLF001
    until(lambda: len(waits) >= 3, "some heartbeats")
    assert set(waits) == {1.0}
    again = threading.Event()
    stand_quite_still(job.services[0], again)
    clock.now += SILENT_BEATS + 1.0
    until(lambda: waits[-3:] == [URGENT_S] * 3, "more heartbeats")
    again.set()
    client.leave()


def test_who_takes_itself_for_the_chief_joins_the_job_of_the_chief(make: Callable[..., Job]) -> None:
    """As when the chief was not heard for a moment, while everybody started."""
    plan = steerable()
    job = make(ps=2, workers=2, timeouts=replace(FAST, heartbeat_s=0.5))
    chief, other = job.client(plan, 0), job.client(plan, 1)
    here, back = threading.Event(), threading.Event()
    begin, try_, join = chief._setup._set_up, other._setup._set_up, other._finder.join_once  # noqa: SLF001

    def begin_late(definer: Any) -> None:
        here.set()
        assert back.wait(20.0)
        begin(definer)

    def join_again(link: Link) -> m.Joined:
        joined = join(link)
        back.set()
        return joined

    def try_at_once(definer: Any) -> None:
        try:
            try_(definer)
        finally:
            other._finder.join_once = join_again  # type: ignore[method-assign]  # noqa: SLF001

    chief._setup._set_up, other._setup._set_up = begin_late, try_at_once  # type: ignore[method-assign]  # noqa: SLF001
    joined = [in_thread(lambda: chief.join(first_values(plan, PARAMS)), "chief")]
    assert here.wait(20.0)
    other._cluster_view.chief = "worker:1"  # noqa: SLF001 - until the next heartbeat
    joined.append(in_thread(lambda: other.join(first_values(plan, PARAMS)), "other"))
    for one in joined:
        one.result(20.0)
    assert other.peers.job == chief.peers.job != ""
    chief.leave()
    other.leave()


@pytest.mark.parametrize("nowhere", [True, False])
def test_a_shard_is_not_given_up_by_what_was_heard_before(make: Callable[..., Job], nowhere: bool) -> None:
    """A standby that has taken over may have had nothing yet when it was heard last, or be heard a moment later."""
    plan = replicated()
    job = make(ps=2, workers=1)
    chief, now = one_worker(job, plan)
    kill_ps(job, 0)
    now = push(chief, plan, now)
    for replicator in job.services[1].replicas.replicators.values():
        replicator._recruiter._recruit = lambda: None  # type: ignore[method-assign]  # noqa: SLF001
    job.start_ps(0)
    chief._cluster_view.is_nowhere = lambda link: nowhere and link.index == 0  # type: ignore[method-assign]  # noqa: SLF001
    chief._cluster_view.holder = lambda link: 0  # type: ignore[method-assign]  # noqa: ARG005, SLF001
    definer = chief.membership.definer
    assert definer is not None
    chief._reviver._revive(0, definer)  # noqa: SLF001
    assert chief._finder.unrecoverable == {}  # noqa: SLF001
    chief.leave()


@pytest.mark.parametrize("count", [0, 1])
def test_a_ps_dies_between_joining_and_the_training(make: Callable[..., Job], count: int) -> None:
    plan = steerable(count)
    job = make(ps=2, workers=1)
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS), NO_CHECKPOINTS)
    if count:
        until(lambda: standbys(job.said) == 2, "the standbys")
    kill_ps(job, 1)
    if not count:
        job.start_ps(1)
    client.training.await_training(1, 10)
    now = push(client, plan, client.exchanger.pull())
    assert now.versions == (1, 1)
    client.leave()


def test_what_is_confirmed_is_done_though_the_confirmation_is_lost(make: Callable[..., Job]) -> None:
    plan = replicated()
    job = make(ps=2, workers=1, transport=MemoryTransport(outlives_sender=False))
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 1)
    until(lambda: standbys(job.said) == 2, "the standbys")
    push(client, plan, now)
    follower = job.services[1].replicas.replicators[0]
    take = follower.receiver._apply  # noqa: SLF001
    lost = threading.Event()

    class Broken:
        peer = "ps:0"

        def send(self, *_: object) -> None:
            lost.set()
            raise StreamClosed("the link is down.")

    def apply_once(record: Any, frame: Any, stream: Any) -> r.Taken:
        begins = isinstance(record, r.Records) and any(isinstance(one, r.Began) for one in record.records)
        return take(record, frame, Broken() if begins and not lost.is_set() else stream)  # type: ignore[arg-type]

    follower.receiver._apply = apply_once  # type: ignore[method-assign]  # noqa: SLF001
    client.training.start_training(2, 7)
    assert lost.is_set()
    standby = job.services[1].replicas.by_shard[0]
    until(
        lambda: (standby.training.fit, standby.training.last_version) == (2, 7), "the standby to know of the training"
    )
    client.leave()


def test_a_ps_of_an_older_job_is_no_standby_of_a_new_one(make: Callable[..., Job]) -> None:
    plan = replicated()
    timeouts = replace(QUICK, lease_s=4.0, start_s=60.0)
    old = make(ps=2, workers=1, timeouts=timeouts)
    client = old.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 20)
    until(lambda: standbys(old.said) == 2, "the standbys of the old job")
    push(client, plan, now)
    cut, reached = threading.Event(), threading.Event()
    for replicator in old.services[0].replicas.replicators.values():

        def connect(ps: int, timeouts: Any, real: Callable[..., Any] = replicator.other._connect) -> Any:  # noqa: SLF001
            if not cut.is_set():
                raise Unreachable("ps:1 is cut off.")
            reached.set()
            return real(ps, timeouts)

        replicator.other._connect = connect  # noqa: SLF001
    kill(client)
    kill_ps(old, 1)
    new = Job(ps=2, workers=1, timeouts=timeouts, transport=old.transport)
    new.spec = ClusterSpec({"ps": ["ps9:1", "ps1:1"], "worker": ["worker9:1"]})
    try:
        for index in range(2):
            new.start_ps(index)
        other = new.client(plan, 0)
        now = other.join(first_values(plan, PARAMS))
        other.training.await_training(1, 200)
        until(lambda: standbys(new.said) == 2, "the standbys of the new job")
        cut.set()  # the old ps:0 reaches ps:1's address again
        for step in range(100):
            if step == 50:
                assert reached.wait(20.0)
            now = push(other, plan, now)
        assert now.versions == (100, 100)
        other.leave()
    finally:
        new.close()


class Door:
    """A lock that knows how many have come to it."""

    def __init__(self) -> None:
        self.came = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.came += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Slow(SystemRuntime):
    """A machine that starts no thread until four have come to a door."""

    def __init__(self) -> None:
        super().__init__()
        self.door = Door()

    def thread(self, work: Callable[[], object], name: str) -> Thread:
        thread = super().thread(work, name)
        start = thread.start

        def start_late() -> None:
            until(lambda: self.door.came == 4, "the others")
            start()

        thread.start = start_late  # type: ignore[method-assign]
        return thread


def test_heartbeats_that_come_at_once_revive_a_ps_once(
    make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ps's heartbeats have a thread of their own, and all of them see that a shard is nowhere."""
    plan, machine = steerable(), Slow()
    client = make(ps=2, workers=1).client(plan, 0, runtime=machine)
    begun, over = [], threading.Event()

    def revive(shard: int, definer: Any) -> None:
        del definer
        begun.append(shard)
        over.wait(20.0)

    monkeypatch.setattr(client._reviver, "_revive", revive)  # noqa: SLF001
    monkeypatch.setattr(client._reviver, "_starting", machine.door)  # noqa: SLF001
    heard = [in_thread(lambda: client._reviver._start(1, None), f"pulse-{i}") for i in range(4)]  # type: ignore[arg-type]  # noqa: SLF001
    for one in heard:
        one.result(20.0)
    over.set()
    client._reviver.wait()  # noqa: SLF001
    assert begun == [1]


def test_the_chief_awaits_the_standbys_though_a_heartbeat_is_missed(
    make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that began without them, because a machine was busy for a moment, could not bear a death."""
    recruit, missed = Recruiter._recruit, threading.Event()  # noqa: SLF001

    def recruit_later(recruiter: Recruiter) -> None:
        missed.wait(20.0)
        recruit(recruiter)

    monkeypatch.setattr(Recruiter, "_recruit", recruit_later)
    plan = replicated()
    job = make(ps=2, workers=1)
    client = job.client(plan, 0)
    find, looks = client._finder.find, []  # noqa: SLF001

    def find_and_miss(link: Link, *given: Any, **named: Any) -> m.Joined:
        joined = find(link, *given, **named)
        if given and given[-1] == f"{link} to come back":  # the chief asks whether the shard has its standby
            client._cluster_view.record_answer(1, None, begun=False)  # noqa: SLF001
            looks.append(link)
            if len(looks) == 5:
                missed.set()
        return joined

    monkeypatch.setattr(client._finder, "find", find_and_miss)  # noqa: SLF001
    client.join(first_values(plan, PARAMS))
    assert missed.is_set()
    assert not any("WARNING" in line for line in job.heard)
    client.leave()


def test_a_ps_that_came_late_is_not_silent() -> None:
    """It has answered just now, though no heartbeat yet."""
    plan = replicated()
    clock = FakeClock()
    timeouts = replace(FAST, heartbeat_s=1.0)
    job = Job(ps=2, workers=1, timeouts=timeouts, runtime=SystemRuntime(clock))
    try:
        job.start_ps(0)
        client = job.client(plan, 0, timeouts=replace(timeouts, lease_s=2.5))
        joining = in_thread(lambda: client.join(first_values(plan, PARAMS)), "chief")
        until(lambda: bool(job.services[0].status().workers), "the chief")
        clock.now += 3.0
        job.start_ps(1)
        joining.result(20.0)
        assert not any("WARNING" in line for line in job.heard)
    finally:
        job.close()


def test_a_chief_that_comes_back_together_with_a_ps(make: Callable[..., Job]) -> None:
    """As when their machine is switched on again: it finds a job under way, in which one ps has nothing."""
    plan = steerable()
    job = make(ps=2, workers=2, timeouts=replace(FAST, heartbeat_s=0.5))
    chief, other, now = two_workers(job, plan, NO_CHECKPOINTS)
    for _ in range(3):
        now = push(other, plan, now)
    kill(chief)
    until(lambda: other.peers.is_chief, "the successor")
    other.membership.definer = None
    kill_ps(job, 1)
    job.start_ps(1)
    again = job.client(plan, 0)
    joined = in_thread(lambda: again.join(first_values(plan, PARAMS), NO_CHECKPOINTS), "the chief").result(20.0)
    assert joined.versions == (3, 0)
    assert [(state.fit, state.last_version) for state in again.training.states()] == [(1, 100), (1, 100)]
    again.leave()


def test_the_first_ps_and_the_chief_die_together_and_only_the_ps_returns(make: Callable[..., Job]) -> None:
    """Nobody holds the first shard, who would say who the chief is: the new ps does, once it knows all workers."""
    plan = plan_of(PARAMS, optax.sgd(0.1), ps=1)
    job = make(ps=1, workers=2, timeouts=QUICK)
    chief, other, now = two_workers(job, plan, NO_CHECKPOINTS)
    kill(chief)
    kill_ps(job, 0)
    job.start_ps(0)
    now = push(other, plan, now)
    assert now.restarted
    assert other.peers.is_chief
    other.training.finish()
    other.leave()


def test_an_heir_waits_until_every_ps_knows_that_the_chief_is_gone(make: Callable[..., Job]) -> None:
    plan = steerable()
    job = make(ps=2, workers=2, timeouts=replace(FAST, heartbeat_s=0.5))
    chief, other = job.client(plan, 0), job.client(plan, 1)
    joining = in_thread(lambda: chief.join(first_values(plan, PARAMS), NO_CHECKPOINTS), "chief")
    other.join(first_values(plan, PARAMS), NO_CHECKPOINTS)
    joining.result(20.0)
    refused, call = threading.Event(), job.services[1].call

    def noted(action: str, *arguments: Any) -> bytes:
        try:
            return call(action, *arguments)
        except Refused:
            refused.set()
            raise

    job.services[1].call = noted  # type: ignore[method-assign, assignment]
    beginning = in_thread(lambda: other.training.await_training(1, 10), "the successor")
    # ps:0 hears that the chief is cut off; for ps:1 its lease goes on for a moment
    chief._heartbeats.heartbeaters[0].stop()  # noqa: SLF001
    chief._heartbeats.heartbeaters[0]._thread.join(5.0)  # noqa: SLF001
    chief._links[0].close()  # noqa: SLF001
    until(lambda: other.peers.is_chief, "the successor, by the word of ps:0")
    assert refused.wait(20.0)
    kill(chief)
    assert beginning.result(20.0).fit == 1
    assert [(state.fit, state.last_version) for state in other.training.states()] == [(1, 10), (1, 10)]
    other.leave()


def test_a_ps_that_dies_after_an_early_end_is_told_of_it(make: Callable[..., Job]) -> None:
    plan = steerable()
    job = make(ps=2, workers=2)
    chief, other, now = two_workers(job, plan, NO_CHECKPOINTS)
    now = push(other, plan, now)
    chief.training.finish()
    for one in (chief, other):
        until(lambda one=one: one._cluster_view.last_version(1) == 1, "the word of the end")  # type: ignore[misc]  # noqa: SLF001
    kill_ps(job, 1)
    job.start_ps(1)
    until(lambda: any("ps:1 resumes from" in line for line in job.heard), "the revival")
    assert [state.last_version for state in chief.training.states()] == [1, 1]
    chief.leave()
    other.leave()


class Relay:
    """A way over TCP that can lose the connections it has, of which neither end is told, and makes new ones again."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._door = socket.create_server(("127.0.0.1", 0))
        self._lost: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self.back = threading.Event()
        """Whether new connections are made."""
        self.back.set()
        threading.Thread(target=self._accept, daemon=True, name="test-relay").start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._door.getsockname()[1]}"

    def lose(self) -> None:
        """What is sent from now on over the connections of now goes nowhere."""
        self._lost |= self._open

    def close(self) -> None:
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self.back.set()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the door is closed
            while True:
                near, _ = self._door.accept()
                self.back.wait()
                host, _, port = self._target.rpartition(":")
                far = socket.create_connection((host, int(port)))
                self._open |= {near, far}
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True, name="test-relay").start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):  # some end has closed
            while data := one.recv(1 << 16):
                if one not in self._lost:
                    other.sendall(data)
            if one not in self._lost:
                other.shutdown(socket.SHUT_WR)


class Relayed:
    """A network in which every listener is reached by a relay."""

    def __init__(self) -> None:
        self._network = Network("flight", credentials=NO_CREDENTIALS)
        self.relays: dict[str, Relay] = {}

    def listen(self, address: str, handler: Any, timeouts: Timeouts) -> Listener:
        return self._network.listen(address, handler, timeouts)

    def connect(self, address: str, timeouts: Timeouts) -> Connection:
        if address not in self.relays:
            self.relays[address] = Relay(address)
        return self._network.connect(self.relays[address].address, timeouts)

    def speaking_as(self, identity: Identity) -> Relayed:
        del identity
        return self


@contextmanager
def one_worker_over_a_relay(**timeouts: float) -> Iterator[tuple[JobClient, Callable[[], Exchange], Relay]]:
    """A job of one worker and one ps: the worker, its next push, and what lies between the two."""
    plan = plan_of(PARAMS, optax.sgd(1.0))
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    network = Relayed()
    job = Job(timeouts=replace(FAST, **timeouts), transport=network)  # type: ignore[arg-type]
    job.spec = ClusterSpec({"ps": [f"127.0.0.1:{port}"], "worker": ["127.0.0.1:1"]})
    job.start()
    client = job.client(plan, 0)
    try:
        now = client.join(first_values(plan, PARAMS), NO_CHECKPOINTS)
        client.training.await_training(1, 10)
        now = push(client, plan, now)
        (relay,) = network.relays.values()
        yield client, lambda: push(client, plan, now), relay
        client.leave()
    finally:
        job.close()
        for relay in network.relays.values():
            relay.close()


def push_while_away(client: JobClient, push_next: Callable[[], Exchange], relay: Relay) -> Exchange:
    """A push that begins as the network is lost, which comes back when some heartbeats have had no answer."""
    relay.back.clear()
    relay.lose()
    pushed: Future[Exchange] = in_thread(push_next, "push")
    until(lambda: client._cluster_view.unanswered(0) >= SILENT_BEATS, "heartbeats without an answer")  # noqa: SLF001
    relay.back.set()
    return pushed.result(20.0)


@pytest.mark.parametrize(("away", "stall_s"), [(False, 6.0), (True, 80.0)])
def test_a_stream_that_the_network_has_lost_is_opened_anew(away: bool, stall_s: float) -> None:
    """After half of what a stall may last; after half a heartbeat, where the network was away and the ps answers again:
    TCP would try the old connection only after as long a time as it was away.
    """
    with one_worker_over_a_relay(heartbeat_s=0.2, stall_s=stall_s) as (client, push_next, relay):
        if away:
            now = push_while_away(client, push_next, relay)
        else:
            relay.lose()
            now = in_thread(push_next, "push").result(20.0)
        assert now.versions == (2,)


def test_while_a_stream_may_be_lost_its_ps_is_asked_often() -> None:
    """Else the next heartbeat would come late that has the stream opened anew."""
    with one_worker_over_a_relay(heartbeat_s=1.0, stall_s=80.0) as (client, push_next, relay):
        heartbeater = client._heartbeats.heartbeaters[0]  # noqa: SLF001
        history: list[str | float] = []
        look, wait = heartbeater.send_heartbeat, heartbeater._wake.wait  # noqa: SLF001

        def noted() -> m.JobState:
            history.append("asked")
            state = look()
            history.append("answered")
            return state

        def wait_noted(timeout_s: float) -> bool:
            history.append(timeout_s)
            return wait(timeout_s)

        heartbeater.send_heartbeat = noted  # type: ignore[method-assign]
        heartbeater._wake.wait = wait_noted  # type: ignore[assignment, method-assign]  # noqa: SLF001
        assert push_while_away(client, push_next, relay).versions == (2,)
    lost = max(i for i, what in enumerate(history[:-1]) if what == "asked" and history[i + 1] != "answered")
    assert history[lost : lost + 5] == ["asked", history[lost + 1], "asked", "answered", URGENT_S]


class Silent:
    """A stream on which somebody waits in vain."""

    silent_s = 1.0

    def __init__(self) -> None:
        self.interrupted = 0

    def interrupt(self) -> None:
        self.interrupted += 1


def test_a_silent_stream_is_opened_anew_once_in_an_outage(make: Callable[..., Job]) -> None:
    job = make(ps=1, workers=1, timeouts=replace(FAST, heartbeat_s=0.2))
    plan = plan_of(PARAMS, optax.sgd(1.0))
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS), NO_CHECKPOINTS)
    client._heartbeats._clock = lambda: now  # noqa: SLF001
    (link,) = client._links  # noqa: SLF001
    kept, silent = link.stream, Silent()
    link.stream = silent  # type: ignore[assignment]
    heartbeats = []
    for now in (10.0, 10.05, 10.2, 10.4, 20.0, 20.2, 20.4):
        client._heartbeats._reopen_lost_streams(0, was_away=now in (10.0, 20.0))  # noqa: SLF001
        heartbeats.append((silent.interrupted, client.exchanger._urgency._may_be_lost(link)))  # noqa: SLF001
    assert heartbeats == [(0, True), (0, True), (1, False), (1, False), (1, True), (2, False), (2, False)]
    link.suspected_at, link.stream = None, kept
    client.leave()
