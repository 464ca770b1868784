"""Standbys: two ps in one process, one of which dies; nothing that was acknowledged is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import optax
import pytest
from msgspec import structs
from numpy.typing import NDArray
from tests.programs import until
from tests.ps.jobs import FAST, PARAMS, Job, first_values, gradient_of, in_thread, kill
from tests.ps.plans import plan_of, tree_of

from trainband.errors import CheckpointError, Unreachable
from trainband.ps.replication.failover import Role
from trainband.ps.replication.replicator import recruiter as recruiting
from trainband.ps.replication.replicator.primary_watch import PrimaryWatch
from trainband.ps.replication.replicator.recruiter import Recruiter
from trainband.ps.replication.replicator.replicator import Replicator
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.rules import Async, Bounded, Sync, UpdateRule
from trainband.ps.service.service import ParameterService
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.exchange import Exchange
from trainband.ps.worker.plan import Plan
from trainband.wire.memory.transport import MemoryTransport
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import encode
from trainband.wire.messages.replication import arbiter_name

QUICK = replace(FAST, connect_s=5.0, call_s=10.0, stall_s=10.0, lease_s=3.0, grace_s=2.0)
"""For tests that wait until a lease has ended."""


def replicated(rule: UpdateRule | None = None, ps: int = 2) -> Plan:
    """SGD with momentum, each shard with a standby."""
    return plan_of(PARAMS, optax.sgd(1.0, momentum=0.5), ps=ps, rule=rule, standbys=1)


@pytest.fixture
def make() -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(**arguments: object) -> Job:
        job = Job(**{"timeouts": FAST, **arguments}).start()  # type: ignore[arg-type]
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        print(*job.said, sep="\n")
        print("---")
        print(*job.heard, sep="\n")
        job.close()


def kill_ps(job: Job, index: int) -> None:
    """As if its process had ended: nobody listens, every stream breaks off."""
    job.services[index].call("shutdown", encode(m.Shutdown("killed")))
    job.services[index].lifecycle.stop()
    for replicator in job.services[index].replicas.replicators.values():
        replicator.stop(1.0)
    job.listeners[index].stop(0.0)


def standbys(said: list[str]) -> int:
    """How often a shard has got a standby."""
    return sum(" is the standby of shard " in line for line in said)


def push(client: JobClient, plan: Plan, now: Exchange, value: float = 1.0) -> Exchange:
    return client.exchanger.push(gradient_of(plan, value), now.versions, loss=1.0, examples=1, finite=True)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("dying", [0, 1])
def test_a_ps_dies_and_nothing_is_lost(make: Callable[..., Job], dying: int, keeps: bool) -> None:
    plan = replicated()
    job = make(ps=2, workers=1, transport=MemoryTransport(outlives_sender=keeps))
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 20)
    for _ in range(5):
        now = push(client, plan, now)
    kill_ps(job, dying)
    for _ in range(5):
        now = push(client, plan, now)
    assert now.versions == (10, 10)
    expected = reference(10)
    for name, leaf in tree_of(plan, now.params).items():
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-6)
    said = len(job.said)
    job.start_ps(dying)
    until(lambda: standbys(job.said[said:]) == 2, "the new standbys")
    for _ in range(10):
        now = push(client, plan, now)
    assert now.versions == (20, 20)
    assert now.done
    client.leave()


@pytest.mark.parametrize("successor", [True, False])
def test_what_is_sent_and_not_read_is_the_standbys(make: Callable[..., Job], successor: bool) -> None:
    """Where streams keep what is sent, nobody waits for the standby; it takes over with all that it was sent."""
    plan = replicated()
    # No sign of life wants an answer meanwhile.
    job = make(ps=2, workers=1, timeouts=replace(FAST, heartbeat_s=4.0))
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 20)
    now = push(client, plan, now)
    standby = job.services[1].replicas.by_shard[0]
    gate = threading.Event()
    read_late(standby, gate)
    for _ in range(4):
        now = push(client, plan, now)
    assert now.versions[0] == 5
    assert standby.version < 5, "the standby was not late, so nothing is shown here"
    kill_ps(job, 0)
    if successor:
        job.start_ps(0)
    look_again(job.services[1].replicas.replicators[0]._watch)  # noqa: SLF001 - and would take over with too little
    assert not any("takes over shard 0" in line for line in job.said)
    gate.set()
    for _ in range(5):
        now = push(client, plan, now)
    assert any("ps:1 takes over shard 0 at version 5" in line for line in job.said)
    assert now.versions[0] == 10
    expected = reference(10)
    for name, leaf in tree_of(plan, now.params).items():
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-6)
    client.leave()


def look_again(looker: Recruiter | PrimaryWatch) -> None:
    """Waits until a replica has looked at the other one a few times."""
    look, looks = looker.poll, list[None]()

    def noted() -> None:
        look()
        looks.append(None)

    looker.poll = noted  # type: ignore[method-assign]
    until(lambda: len(looks) > 3, "more looks")


def read_late(replica: ShardReplica, gate: threading.Event) -> None:
    """Has a replica do what its primary sends only once the gate is open; its lock is free meanwhile."""
    lock, follow = replica._task.lock, replica.follow  # noqa: SLF001

    def late(*args: Any) -> None:
        lock.release()
        try:
            gate.wait(60.0)
        finally:
            lock.acquire()
        follow(*args)

    replica.follow = late  # type: ignore[method-assign, assignment]


def test_a_standby_that_does_not_read_is_said(make: Callable[..., Job]) -> None:
    plan = replicated()
    job = make(ps=2, workers=1)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 40)
    gate = threading.Event()
    read_late(job.services[1].replicas.by_shard[0], gate)

    def train() -> Exchange:
        last = now
        while not last.done:
            last = push(client, plan, last)
        return last

    training = in_thread(train, "train")
    until(lambda: any("waiting for ps:1 to take the records of shard 0 (" in line for line in job.said), "word")
    gate.set()
    assert training.result(40.0).versions == (40, 40)
    client.leave()


def reference(steps: int) -> dict[str, NDArray[np.float32]]:
    """What SGD with momentum makes of PARAMS by so many gradients of one."""
    moved, velocity = 0.0, 0.0
    for _ in range(steps):
        velocity = 0.5 * velocity + 1.0
        moved += velocity
    return {name: value - moved for name, value in PARAMS.items()}


RULES = [Async(), Sync(), pytest.param(Sync(aggregate=5), marks=pytest.mark.slow), Bounded(staleness=1)]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dying", [0, 1])
def test_every_rule_goes_on_from_where_it_was(make: Callable[..., Job], rule: UpdateRule, dying: int) -> None:
    """Several workers train while a ps dies, comes back, and the other one dies: exactly the updates asked for."""
    plan = replicated(rule)
    job = make(ps=2, workers=3)
    steps = 600
    chief = job.client(plan, 0)
    starts = [in_thread(lambda: chief.join(first_values(plan, PARAMS)), "chief")]
    others = [job.client(plan, i) for i in (1, 2)]
    starts += [in_thread(partial(client.join, pytest.fail), "worker") for client in others]
    nows = [start.result(20.0) for start in starts]
    versions = [0]
    bounds = [200]  # where the workers wait, however long a ps takes to come back

    def train(client: JobClient, now: Exchange) -> Exchange:
        client.training.await_training(1, steps)
        while not now.done:
            until(lambda: versions[0] < bounds[-1], "the test to go on")
            now = push(client, plan, now)
            versions[0] = max(versions[0], *now.versions)
        client.leave()
        return now

    runs = [in_thread(partial(train, client, now), "train") for client, now in zip([chief, *others], nows, strict=True)]
    until(lambda: versions[0] > 20, "the first updates")
    kill_ps(job, dying)
    until(lambda: any("takes over shard" in line for line in job.said), "the takeover")
    at = versions[0]
    bounds.append(400)
    until(lambda: versions[0] > at + 10, "updates without it")
    said = len(job.said)
    job.start_ps(dying)
    until(lambda: standbys(job.said[said:]) == 2, "the new standbys")
    later = versions[0]
    bounds.append(500)
    until(lambda: versions[0] > later + 10, "updates with it")
    assert versions[0] < steps
    kill_ps(job, 1 - dying)
    bounds.append(steps + 1)
    lasts = [run.result(60.0) for run in runs]
    for last in lasts:
        assert last.versions == (steps, steps)
    expected = reference(steps)
    for name, leaf in tree_of(plan, lasts[0].params).items():
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-5)


def test_every_task_ends_with_the_same_error_where_the_values_are_lost(make: Callable[..., Job]) -> None:
    """The chief finds that no ps has them, and tells the others by way of the ps."""
    plan = replicated()
    job = make(ps=2, workers=2, timeouts=QUICK)
    chief, other = job.client(plan, 0), job.client(plan, 1)
    joined = in_thread(lambda: chief.join(first_values(plan, PARAMS)), "chief")
    others = other.join(first_values(plan, PARAMS))
    chiefs = joined.result(20)
    for client in (chief, other):
        client.training.await_training(1, 20)
    for dying in (0, 1):
        kill_ps(job, dying)
    for dying in (0, 1):
        job.start_ps(dying)

    def train(client: JobClient, now: Exchange) -> None:
        try:
            push(client, plan, now)
        except CheckpointError as exc:
            client.leave(f"{exc}")
            raise

    pushes = [in_thread(partial(train, chief, chiefs), "chief"), in_thread(partial(train, other, others), "other")]
    errors = [ending.exception(2 * QUICK.lease_s) for ending in (*pushes, *job.running[2:])]
    assert {type(error) for error in errors} == {CheckpointError}
    (said,) = {str(error) for error in errors}
    assert "has lost its values, and this job saves none" in said


def test_both_ps_die(make: Callable[..., Job]) -> None:
    """Nothing can help: the chief says so, and ends."""
    plan = replicated()
    job = make(ps=2, workers=1, timeouts=QUICK)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 20)
    now = push(client, plan, now)
    for index in (0, 1):
        kill_ps(job, index)
    for index in (0, 1):
        job.start_ps(index)
    with pytest.raises(CheckpointError, match="has lost its values, and this job saves none"):
        push(client, plan, now)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_primary_that_was_away_finds_its_epoch_over(make: Callable[..., Job], keeps: bool) -> None:
    """It may have updates that nobody knows of; it gives them up, and follows the one that has taken over."""
    plan = replicated()
    job = make(ps=2, workers=1, transport=MemoryTransport(outlives_sender=keeps), timeouts=QUICK)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 30)
    now = push(client, plan, now)
    away = job.services[0]
    stopped = threading.Event()
    for replicator in away.replicas.replicators.values():
        stand_still(replicator, stopped)
    now = push(client, plan, now)
    assert any("ps:1 takes over shard 0" in line for line in job.said)
    stopped.set()
    until(lambda: any("ps:0 no longer holds shard 0" in line for line in job.said), "the fence")
    until(lambda: standbys(job.said) == 3, "the return as a standby")
    while not now.done:
        now = push(client, plan, now)
    assert now.versions == (30, 30)
    for name, leaf in tree_of(plan, now.params).items():
        np.testing.assert_allclose(leaf, reference(30)[name], rtol=1e-5)
    client.leave()


def stand_still(replicator: Replicator, again: threading.Event) -> None:
    """Its connections deliver nothing, in either direction, until then."""
    sender, watch = replicator.sender, replicator._watch  # noqa: SLF001

    def held(work: Callable[..., None]) -> Callable[..., None]:
        def wait_and_work(*args: Any, **options: Any) -> None:
            again.wait(60.0)
            work(*args, **options)

        return wait_and_work

    sender.exchange, watch.poll = held(sender.exchange), held(watch.poll)  # type: ignore[method-assign]


def test_a_standby_of_another_version_is_none(make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """It might not come to the same values; the job goes on, and says so."""
    monkeypatch.setattr(recruiting, "VERSION", "9.9.9")
    plan = replicated()
    job = make(ps=2, workers=1, timeouts=replace(FAST, stall_s=1.0))
    client = job.client(plan, 0)
    joining = in_thread(lambda: client.join(first_values(plan, PARAMS)), "chief")
    until(lambda: any("WARNING: shard 0 has no standby" in line for line in job.said), "the warning")
    assert any("runs 9.9.9: run the same version on both" in line for line in job.said)
    assert standbys(job.said) == 0
    now = joining.result(20.0)
    client.training.await_training(1, 3)
    while not now.done:
        now = push(client, plan, now)
    assert now.versions == (3, 3)
    assert any("WARNING: shard 0 has no standby yet" in line for line in job.heard)
    client.leave()


def test_a_standby_with_another_compiler_says_that_it_may_differ(
    make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recruiting, "COMPILER", "jaxlib 9.9.9 for a machine of tomorrow")
    plan = replicated()
    job = make(ps=2, workers=1)
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS))
    warnings = [line for line in job.said if "WARNING" in line]
    assert len(warnings) == len(set(warnings)) == 2, "each standby says it once"
    assert all("has jaxlib 9.9.9 for a machine of tomorrow: their values may differ" in line for line in warnings)
    client.leave()


def arbiter_and_other(job: Job, plan: Plan) -> tuple[JobClient, JobClient, Exchange]:
    """Two workers of a training of 20 updates that has begun: an arbiter, the other one, and where that is."""
    clients = [job.client(plan, number) for number in range(2)]
    starts = [in_thread(partial(client.join, first_values(plan, PARAMS)), "join") for client in clients]
    nows = [start.result(20.0) for start in starts]
    for begin in [in_thread(partial(client.training.await_training, 1, 20), "begin") for client in clients]:
        begin.result(20.0)
    until(lambda: all(replica.failover.secure for replica in primaries(job)), "the standbys")
    arbiters = {replica.failover.term.arbiter for replica in primaries(job)}
    names = [arbiter_name(client.membership.incarnation) for client in clients]
    one = next(number for number, name in enumerate(names) if name in arbiters)
    return clients[one], clients[1 - one], nows[1 - one]


def test_an_arbiter_that_leaves_decides_first_what_is_to_be_decided(make: Callable[..., Job]) -> None:
    """A ps dies as the worker leaves that says who takes over: without its word the others could not go on."""
    plan = replicated()
    job = make(ps=2, workers=2, timeouts=QUICK)
    leaving, staying, now = arbiter_and_other(job, plan)
    kill_ps(job, 0)
    left = in_thread(leaving.leave, "leave")
    while not now.done:
        now = push(staying, plan, now)
    assert now.versions == (20, 20)
    left.result(20.0)
    staying.leave()


@pytest.mark.parametrize("lease_s", [3.0, 6.0])  # in the second, the silence is noticed long after the leave
def test_an_arbiter_that_leaves_is_heard_until_a_silent_ps_is_given_up(
    lease_s: float, make: Callable[..., Job]
) -> None:
    """A replica asks only an arbiter that it hears, and only after a lease of silence: longer than leaving takes."""
    plan = replicated()
    job = make(ps=2, workers=2, timeouts=replace(QUICK, stall_s=30.0, lease_s=lease_s))
    leaving, staying, now = arbiter_and_other(job, plan)
    again = threading.Event()
    stand_quite_still(job.services[0], again)
    left = in_thread(leaving.leave, "leave")
    while not now.done:
        now = push(staying, plan, now)
    assert now.versions == (20, 20)
    left.result(40.0)
    again.set()
    staying.leave()


def stand_quite_still(service: ParameterService, again: threading.Event) -> None:
    """As if its process was stopped, until then."""

    def held(work: Callable[..., Any]) -> Callable[..., Any]:
        def wait_and_work(*args: Any) -> Any:
            again.wait(60.0)
            return work(*args)

        return wait_and_work

    service.call, service.streams._push = held(service.call), held(service.streams._push)  # type: ignore[method-assign]  # noqa: SLF001
    for replicator in service.replicas.replicators.values():
        stand_still(replicator, again)
        replicator.receiver._apply = held(replicator.receiver._apply)  # type: ignore[method-assign]  # noqa: SLF001


def test_a_standby_that_cannot_read_all_is_none_any_more(make: Callable[..., Job]) -> None:
    """What lies in the stream counts as taken: it must not take over without that."""
    plan = replicated()
    job = make(ps=2, workers=1, timeouts=replace(FAST, heartbeat_s=4.0))
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 20)
    now = push(client, plan, now)
    replicator, replica = job.services[1].replicas.replicators[0], job.services[1].replicas.by_shard[0]
    gate = threading.Event()
    read_late(replica, gate)
    now = push(client, plan, now)
    stream = replicator.receiver._leading  # noqa: SLF001
    assert stream is not None

    def full(_: float) -> None:
        raise OSError("too many open files")

    stream.receive = full  # type: ignore[method-assign, assignment]
    gate.set()
    until(lambda: any("ps:1 cannot follow shard 0: too many open files" in line for line in job.said), "the word")
    until(lambda: standbys(job.said) == 3, "the new snapshot")
    while not now.done:
        now = push(client, plan, now)
    assert now.versions == (20, 20)
    client.leave()


@pytest.mark.parametrize("reached", [True, False])
def test_an_old_answer_does_not_outweigh_a_newer_sign_of_life(make: Callable[..., Job], reached: bool) -> None:
    """A standby that asks whether its primary lives, and hears it meanwhile, has nobody to replace."""
    plan = replicated()
    job = make(ps=2, workers=1)
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 20)
    replicator, replica = job.services[1].replicas.replicators[0], job.services[1].replicas.by_shard[0]
    for stopped in job.services[1].replicas.replicators.values():
        stopped.stop(5.0)  # what follows is done by hand
    replicator.receiver._leading, replicator.other.heard_at = None, time.monotonic()  # noqa: SLF001 - its stream is lost
    state = replicator.other.state(0)

    def is_back_meanwhile(ps: int) -> m.JobState:  # noqa: ARG001
        replicator.other.heard_at = time.monotonic()
        if not reached:
            raise Unreachable("nobody listens there.")
        return structs.replace(state, replicas=())  # it had nothing, when it answered

    replicator.other.state = is_back_meanwhile  # type: ignore[method-assign]
    replicator._watch.poll()  # noqa: SLF001
    assert (replica.failover.role, replica.failover.vote_request) == (Role.STANDBY, 0)
    client.leave()


def primaries(job: Job) -> list[ShardReplica]:
    """Whatever replicas hold a shard."""
    return [replica for service in job.services for replica in service.replicas.by_shard.values() if replica.is_primary]


def test_a_chief_finds_a_ps_that_was_not_there_when_it_came(make: Callable[..., Job]) -> None:
    """It alone can give a shard its values again, and does so though it waits elsewhere."""
    plan = replicated(Bounded(staleness=0), ps=3)
    job = make(ps=3, workers=2, timeouts=QUICK)
    first, other = job.client(plan, 0), job.client(plan, 1)
    starts = [in_thread(partial(client.join, first_values(plan, PARAMS)), "join") for client in (first, other)]
    for start in starts:
        start.result(20.0)
    until(lambda: len([replica for replica in primaries(job) if replica.failover.secure]) == 3, "the standbys")
    kill_ps(job, 2)
    until(lambda: any("ps:0 takes over shard 2" in line for line in job.said), "the takeover")
    # Were its arbiter to die before it has decided, too, then shard 1 would wait for ps:2.
    until(lambda: any("ps:1 now serves shard 1" in line for line in job.said), "the end of the wait")
    kill(first)
    successor = job.client(plan, 0)
    successor.join(pytest.fail)
    assert [heartbeater.worker for heartbeater in successor._heartbeats.heartbeaters] == [0, 0, -1]  # noqa: SLF001
    job.start_ps(2)
    until(lambda: successor._heartbeats.heartbeaters[2].worker == 0, "the chief's coming to the ps")  # noqa: SLF001
    successor.leave()
    other.leave()
