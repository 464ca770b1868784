"""Workers and ps together, over the in-memory transport: every task is a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import optax
import pytest
from tests.programs import until
from tests.ps.jobs import FAST, PARAMS, FakeClock, Job, first_values, gradient_of, in_thread, kill, sgd_plan, spec_of
from tests.ps.plans import plan_of, tree_of

from trainband.cluster import Cluster, Task
from trainband.data.leases import LeaseRequest
from trainband.data.pieces import SourceSettings
from trainband.errors import (
    DeadlineExceeded,
    ModelMismatch,
    NoTaskListens,
    PeerError,
    Refused,
    ResourceExhausted,
    StreamClosed,
    UnknownHost,
    Unreachable,
)
from trainband.job.checkpoints import RestoreFrom
from trainband.model.placement import RoundRobin
from trainband.ps.rules import Sync
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.exchange import AT_ONCE_BYTES, Exchange
from trainband.ps.worker.membership import PREEMPTED_WAIT_S
from trainband.ps.worker.plan import Plan
from trainband.ps.worker.shard_finder import ShardFinder
from trainband.runtime import SystemRuntime, Thread
from trainband.runtime.signals import PREEMPTED
from trainband.runtime.step_times import PARTS
from trainband.wire.frame import Frame
from trainband.wire.memory.transport import MemoryTransport
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import decode, encode
from trainband.wire.transport import ANYBODY, Caller, Stream, Timeouts

SLICED = RoundRobin(max_slice_bytes=16)


@pytest.fixture
def make() -> Iterator[Callable[..., Job]]:
    """Makes jobs, and ends them after the test."""
    jobs: list[Job] = []

    def start(**arguments: Any) -> Job:
        jobs.append(Job(**arguments))
        return jobs[-1].start()

    yield start
    for job in jobs:
        job.close()


def train(client: JobClient, plan: Plan, now: Exchange, value: float) -> tuple[Exchange, int]:
    """Pushes one gradient again and again until the job is done; the last answer, and how many were applied."""
    applied = 0
    while not now.done:
        now = client.exchanger.push(gradient_of(plan, value), now.versions, loss=value, examples=8, finite=True)
        applied += now.applied
    return now, applied


def worker(job: Job, plan: Plan, index: int, steps: int) -> tuple[Any, int]:
    """A whole worker: what it ends with, as the params tree, and how many of its pushes were applied."""
    client = job.client(plan, index)
    client.join(first_values(plan, PARAMS))
    if index == 0:
        client.training.start_training(1, steps)
    client.training.await_training(1)
    _, applied = train(client, plan, client.exchanger.pull(), float(index + 1))
    final = client.exchanger.pull()
    client.leave()
    return tree_of(plan, final.params), applied


@pytest.mark.parametrize(("ps", "workers"), [(1, 1), (1, 2), (1, 4), (3, 1), (3, 4)])
def test_a_job_makes_exactly_the_updates_asked_for(make: Callable[..., Job], ps: int, workers: int) -> None:
    plan = sgd_plan(ps, rate=0.5, policy=SLICED)
    job = make(ps=ps, workers=workers)
    steps = 30
    results = [in_thread(lambda i=i: worker(job, plan, i, steps), f"worker{i}") for i in range(workers)]  # type: ignore[misc]
    found = [result.result(30.0) for result in results]
    assert job.ends() == ["the job is complete"] * ps
    assert [service.status().version for service in job.services] == [steps] * ps
    applied = [count for _, count in found]
    if ps == 1:
        assert sum(applied) == steps
        # SGD on constant gradients does not depend on the order: the sum of what was applied is all
        taken = 0.5 * sum(count * (i + 1) for i, count in enumerate(applied))
        for params, _ in found:
            for name, first in PARAMS.items():
                np.testing.assert_allclose(params[name], first - taken)
    for params, _ in found[1:]:
        for name in PARAMS:
            np.testing.assert_array_equal(params[name], found[0][0][name])


def test_one_worker_is_a_sequential_replay(make: Callable[..., Job]) -> None:
    plan = plan_of(PARAMS, optax.adam(0.1), ps=3, policy=SLICED)
    job = make(ps=3)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.start_training(1, 6)
    params, optimizer = PARAMS, optax.adam(0.1)
    state = optimizer.init(params)
    for step in range(6):
        value = float(step - 2)
        now = client.exchanger.push(gradient_of(plan, value), now.versions, loss=1.0, examples=1, finite=True)
        assert (now.versions, now.global_step, now.staleness, now.applied) == ((step + 1,) * 3, step + 1, 0, True)
        gradient = {name: np.full_like(leaf, value) for name, leaf in PARAMS.items()}
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        got = tree_of(plan, now.params)
        for name in PARAMS:
            np.testing.assert_allclose(got[name], params[name], rtol=1e-6, atol=1e-6)
    assert now.done
    client.leave()
    assert job.ends() == ["the job is complete"] * 3


def test_large_answers_of_all_ps_are_received_at_the_same_time(
    make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {name: np.ones(AT_ONCE_BYTES // 8, np.float32) for name in "ab"}
    plan = sgd_plan(2, params=params)
    client = make(ps=2).client(plan, 0)
    now = client.join(first_values(plan, params))
    client.training.start_training(1, 100)
    links = client._links  # noqa: SLF001
    other_arrived = threading.Event()

    def after(stream: Stream, name: str) -> Callable[[float], Frame | None]:
        receive = stream.receive

        def first(timeout_s: float) -> Frame | None:
            return receive(timeout_s) if other_arrived.wait(timeout_s) else None

        def other(timeout_s: float) -> Frame | None:
            frame = receive(timeout_s)
            if frame is not None:
                other_arrived.set()
            return frame

        return first if name == "ps:0" else other

    for link in links:
        assert link.stream is not None
        monkeypatch.setattr(link.stream, "receive", after(link.stream, link.name))
    gradient = [[np.ones_like(block) for block in blocks] for blocks in now.params]
    for step in range(1, 4):
        other_arrived.clear()
        now = client.exchanger.push(gradient, now.versions, loss=1.0, examples=1, finite=True)
        assert now.versions == (step, step)
        assert tree_of(plan, now.params)["b"][0] == 1.0 - step
    client.leave()


# --- coming


def test_the_chief_initialises_exactly_once(make: Callable[..., Job]) -> None:
    plan = sgd_plan(2)
    job = make(ps=2, workers=1)
    calls: list[int] = []

    def first(value: float) -> Callable[[], Any]:
        def values() -> Any:
            calls.append(1)
            return gradient_of(plan, value)

        return values

    client = job.client(plan, 0)
    client.join(first(5.0))
    client.leave("crashed")
    again = job.client(plan, 0).join(first(7.0))  # another life of the chief
    assert len(calls) == 1
    assert all((block == 5.0).all() for blocks in again.params for block in blocks)


def test_who_is_not_the_chief_waits_and_says_for_whom(
    make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainband.runtime.waiting.FIRST_NOTICE_S", 0.02)
    plan = sgd_plan()
    job = make(workers=2)
    late = in_thread(lambda: job.client(plan, 1).join(pytest.fail), "worker1")
    until(lambda: bool(job.heard), "a word")
    assert job.heard[0].startswith("waiting for worker:0 to initialise the variables on ps:0 (")
    assert not late.done()
    job.client(plan, 0).join(first_values(plan, PARAMS))
    assert late.result(20.0).versions == (0,)


def test_a_worker_that_comes_late_finds_the_job_as_it_is(make: Callable[..., Job]) -> None:
    plan = sgd_plan()
    job = make(workers=2)
    chief = job.client(plan, 0)
    now = chief.join(first_values(plan, PARAMS))
    chief.training.start_training(1, 5)
    train(chief, plan, now, 1.0)
    chief.training.start_training(2, 10)
    late = job.client(plan, 1)
    assert late.join(pytest.fail).versions == (5,)
    assert late.training.await_training(1).fit == 2
    last, applied = train(late, plan, late.exchanger.pull(), 1.0)
    assert (last.global_step, applied) == (10, 5)
    after = late.exchanger.push(gradient_of(plan, 1.0), last.versions, loss=1.0, examples=1, finite=True)
    assert (after.applied, after.done, after.versions) == (False, True, (10,))
    chief.leave()
    late.leave()
    assert job.ends() == ["the job is complete"]


def test_data_that_is_closed_after_its_worker_has_left_does_not_bring_it_back(make: Callable[..., Job]) -> None:
    """The ps waited for the end of its lease."""
    plan = sgd_plan()
    job = make(workers=2)
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS))
    client.leave(PREEMPTED)
    with pytest.raises(StreamClosed, match="worker:0 has left the job"):
        client.peers.lease(LeaseRequest("data", SourceSettings(10, 2, 1, 0, False)))
    assert job.services[0].status().workers[0].presence == "preempted"


def test_what_is_asked_of_a_ps_that_is_gone_takes_its_time_once(make: Callable[..., Job]) -> None:
    """On leaving, a worker asked a ps that had died four times, and waited each time."""
    plan, clock = sgd_plan(), FakeClock()
    client = make(runtime=SystemRuntime(clock)).client(plan, 0)
    membership = client.membership
    client.peers.shorten_waits(PREEMPTED)
    waited = membership.waiting(60.0)
    clock.now += PREEMPTED_WAIT_S + 0.1
    with pytest.raises(DeadlineExceeded):
        membership.check(waited, "ps:0", "")
    with pytest.raises(DeadlineExceeded):
        membership.check(membership.waiting(60.0), "ps:0", "")


def test_a_worker_that_comes_before_the_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainband.runtime.waiting.FIRST_NOTICE_S", 0.02)
    plan = sgd_plan()
    job = Job()
    try:
        joining = in_thread(lambda: job.client(plan, 0).join(first_values(plan, PARAMS)), "worker0")
        until(lambda: bool(job.heard), "a word")
        assert job.heard[0].startswith("waiting for ps:0 at ps0:1 to come up (")
        job.start()
        assert joining.result(20.0).versions == (0,)
    finally:
        job.close()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoTaskListens(""), "where the process listening is not a trainband task; check the"),
        (DeadlineExceeded(""), "check that it runs, and that neither another program nor a firewall has its port"),
    ],
)
def test_an_address_where_something_else_listens_has_its_own_words(
    error: PeerError, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(ShardFinder, "join_once", refuse)
    plan, job = sgd_plan(), Job()
    with pytest.raises(PeerError, match=rf"waited \d+\.\d s for ps:0 at ps0:1.*{words}"):
        job.client(plan, 0, timeouts=Timeouts(start_s=0.1)).join(first_values(plan, PARAMS))
    job.close()


def let_more_than_a_lease_pass(job: Job, clock: FakeClock) -> None:
    """Moves the clock whenever the first ps has heard its worker."""
    for _ in range(3):
        clock.now += job.timeouts.lease_s / 2
        until(lambda: job.services[0].status().workers[0].heard_s == 0.0, "a heartbeat")


def test_a_worker_keeps_its_lease_on_one_ps_while_it_waits_for_another() -> None:
    plan, clock = sgd_plan(2), FakeClock()
    job = Job(ps=2, timeouts=replace(FAST, lease_s=8.0), runtime=SystemRuntime(clock))
    try:
        job.start_ps(0)
        joining = in_thread(lambda: job.client(plan, 0).join(first_values(plan, PARAMS)), "worker0")
        until(lambda: bool(job.services[0].status().workers), "the joining")
        let_more_than_a_lease_pass(job, clock)
        assert [w.presence for w in job.services[0].status().workers] == ["live"]
        assert not job.said
        job.start_ps(1)
        assert joining.result(20.0).versions == (0, 0)
    finally:
        job.close()


def test_a_ps_that_never_comes() -> None:
    plan = sgd_plan()
    job = Job()
    timeouts = Timeouts(start_s=0.2, heartbeat_s=0.05, lease_s=1.0)
    with pytest.raises(
        Unreachable, match=r"waited \d+\.\d s for ps:0 at ps0:1 to come up; check that it runs and that"
    ):
        job.client(plan, 0, timeouts=timeouts).join(first_values(plan, PARAMS))
    job.close()


class Nameless(MemoryTransport):
    """A network without a name service."""

    def find(self, address: str) -> Any:
        raise UnknownHost(f"the host name of {address} cannot be resolved.")


def test_a_ps_whose_name_nobody_knows_is_said_at_once_and_soon_an_error() -> None:
    job = Job(transport=Nameless())
    timeouts = Timeouts(resolve_s=0.2, heartbeat_s=0.05, lease_s=1.0)
    with pytest.raises(UnknownHost, match=r"waited \d+\.\d s for the host name of ps:0 at ps0:1 to resolve; check"):
        job.client(sgd_plan(), 0, timeouts=timeouts).join(first_values(sgd_plan(), PARAMS))
    assert job.heard == ["ps:0: the host name of ps0:1 cannot be resolved."]
    job.close()


def test_a_chief_that_never_comes(make: Callable[..., Job]) -> None:
    plan = sgd_plan()
    job = make(workers=2)
    timeouts = Timeouts(start_s=0.2, heartbeat_s=0.05, lease_s=1.0)
    with pytest.raises(DeadlineExceeded, match=r"waited \d+\.\d s for worker:0 to initialise the variables on ps:0"):
        job.client(plan, 1, timeouts=timeouts).join(pytest.fail)


MODELS: list[tuple[Callable[[], Plan], str]] = [
    (
        lambda: sgd_plan(params={**PARAMS, "w": np.zeros((6, 3), np.float32)}),
        r"differs is w: the chief has w float32\[6,2\]",
    ),
    (lambda: sgd_plan(params={"b": PARAMS["b"]}), r"differs is w: the chief has w float32\[6,2\], worker:1 has none"),
    (lambda: sgd_plan(rate=0.5), "the optimizer differs"),
    (lambda: plan_of(PARAMS, optax.adam(1.0)), "the optimizer differs"),
]


@pytest.mark.parametrize(("other", "words"), MODELS, ids=["shape", "missing", "learning rate", "optimizer"])
def test_another_model_is_refused_by_name(make: Callable[..., Job], other: Callable[[], Plan], words: str) -> None:
    plan = sgd_plan()
    job = make(workers=2)
    chief = job.client(plan, 0)
    now = chief.join(first_values(plan, PARAMS))
    stranger = job.client(other(), 1)
    with pytest.raises(ModelMismatch, match=words):
        stranger.join(pytest.fail)
    stranger.leave("ModelMismatch")
    # the others go on, and have heard nothing of it
    chief.training.start_training(1, 3)
    train(chief, plan, now, 1.0)
    assert [worker.task for worker in job.services[0].status().workers] == ["worker:0"]
    corrected = job.client(plan, 1)
    corrected.join(pytest.fail)
    corrected.leave()
    chief.leave()
    assert job.ends() == ["the job is complete"]


def test_two_processes_claim_one_task(make: Callable[..., Job]) -> None:
    plan = sgd_plan()
    job = make()
    job.client(plan, 0).join(first_values(plan, PARAMS))
    with pytest.raises(Refused, match=r"worker:0 is already in the job.*Give this process another task index"):
        job.client(plan, 0, timeouts=replace(FAST, lease_s=0.5)).join(first_values(plan, PARAMS))


def test_the_heart_keeps_the_lease_while_the_main_thread_is_busy(make: Callable[..., Job]) -> None:
    plan, clock = sgd_plan(), FakeClock()
    job = make(runtime=SystemRuntime(clock))
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS))
    let_more_than_a_lease_pass(job, clock)
    assert [w.presence for w in job.services[0].status().workers] == ["live"]
    assert not job.said


def test_a_worker_knows_how_long_a_ps_held_its_push_for_others_and_tells_of_it(make: Callable[..., Job]) -> None:
    plan = plan_of(PARAMS, optax.sgd(0.5), rule=Sync())
    clock = FakeClock()
    job = make(workers=2, runtime=SystemRuntime(clock))
    first, second = job.client(plan, 0), job.client(plan, 1)
    now = first.join(first_values(plan, PARAMS))
    second.join(first_values(plan, PARAMS))
    first.training.start_training(1, 9)
    second.training.await_training(1)

    def send(client: JobClient) -> None:
        client.exchanger.send(gradient_of(plan, 1.0), now.versions, loss=1.0, examples=1, finite=True)

    for client in (first, second):  # the first update is compiled, and has both workers in it
        send(client)
    second.exchanger.collect()
    now = first.exchanger.collect()
    collects, collect = threading.Event(), first.exchanger._collect  # noqa: SLF001

    def recorded(what: str) -> Exchange:
        collects.set()
        return collect(what)

    first.exchanger._collect = recorded  # type: ignore[method-assign]  # noqa: SLF001
    held_s = {}
    for collects_at_once in (True, False):
        before = first.membership.times.ps
        collects.clear()
        send(first)
        waits = in_thread(first.exchanger.collect, "collect") if collects_at_once else None
        until(lambda: job.services[0].status().waiting_for == ("worker:1",), "the first push")
        assert waits is None or collects.wait(20.0)
        clock.now += 0.3  # what the slower worker computes
        send(second)
        second.exchanger.collect()
        now = first.exchanger.collect() if waits is None else waits.result(20.0)
        held_s[collects_at_once] = first.membership.times.ps - before
    # The ps had held the second push already when the worker began to wait.
    assert held_s == {True: pytest.approx(0.3), False: 0.0}

    def have_told() -> bool:
        clock.now += 0.1
        return all(w.time.get("ps") is not None for w in job.services[0].status().workers)

    until(have_told, "their shares")
    assert set(job.services[0].status().workers[0].time) == {*PARTS, "other"}


# --- trouble


def test_a_gradient_that_is_not_finite(make: Callable[..., Job]) -> None:
    plan = sgd_plan(3, policy=SLICED)
    job = make(ps=3)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.start_training(1, 10)
    bad = [[block.copy() for block in blocks] for blocks in gradient_of(plan, 1.0)]
    bad[2][0][0] = np.nan  # one element, on one ps; the worker has looked at all of it
    refused = client.exchanger.push(bad, now.versions, loss=float("nan"), examples=1, finite=False)
    assert (refused.versions, refused.applied, refused.staleness, refused.done) == ((0, 0, 0), False, 0, False)
    assert "refused a gradient of worker:0 that is not finite (push 1, computed from version 0" in refused.refusal
    for name, first in PARAMS.items():
        np.testing.assert_array_equal(tree_of(plan, refused.params)[name], first)
    good = client.exchanger.push(gradient_of(plan, 1.0), refused.versions, loss=1.0, examples=1, finite=True)
    assert (good.versions, good.applied, good.refusal) == ((1, 1, 1), True, "")


def test_a_gradient_of_other_sizes(make: Callable[..., Job]) -> None:
    plan = sgd_plan()
    job = make()
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    with pytest.raises(
        Refused, match=r"ps:0 at ps0:1 refused: worker:0 pushed a gradient that does not fit this shard"
    ):
        client.exchanger.push([[np.zeros(3, np.float32)]], now.versions, loss=1.0, examples=1, finite=True)
    with pytest.raises(StreamClosed):
        client.exchanger.pull()


def test_a_client_that_has_not_joined_or_has_left(make: Callable[..., Job]) -> None:
    plan = sgd_plan()
    job = make()
    client = job.client(plan, 0)
    with pytest.raises(StreamClosed, match="worker:0 has no stream to ps:0 at ps0:1: it has not joined the job"):
        client.exchanger.pull()
    client.join(first_values(plan, PARAMS))
    client.leave()
    client.leave()
    with pytest.raises(PeerError):
        client.exchanger.pull()


def test_a_ps_that_goes_in_the_middle(make: Callable[..., Job]) -> None:
    plan = sgd_plan(2)
    job = make(ps=2, timeouts=replace(FAST, connect_s=600.0, call_s=600.0, stall_s=600.0))  # it waits for no deadline
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.start_training(1, 1 << 40)
    training: Future[Any] = in_thread(lambda: train(client, plan, now, 0.0), "worker0")
    until(lambda: job.services[0].status().version > 3, "some steps")
    job.listeners[1].stop(0.5)
    error = training.exception(60.0)
    assert isinstance(error, PeerError)
    assert "ps1:1" in str(error)


def test_a_worker_that_dies_does_not_stop_the_others(make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainband.ps.membership.job_end.LINGER_S", 1.0)  # it might come back
    plan = sgd_plan()
    job = make(workers=3)
    steps = 200
    chief = job.client(plan, 0)
    now = chief.join(first_values(plan, PARAMS))
    # One has only joined and its stream breaks; it had pushed before.
    dying = job.client(plan, 1)
    at = dying.join(pytest.fail)
    chief.training.start_training(1, steps)
    dying.exchanger.push(gradient_of(plan, 1.0), at.versions, loss=1.0, examples=1, finite=True)
    kill(dying)
    until(lambda: "worker:1 is gone: its stream broke off" in job.said, "the loss")
    # Another leaves with an error of its own.
    failing = job.client(plan, 2)
    failing.join(pytest.fail)
    failing.leave("OSError: no space")
    last, applied = train(chief, plan, now, 1.0)
    assert (last.global_step, applied) == (steps, steps - 1)
    assert [(w.task, w.presence) for w in job.services[0].status().workers] == [
        ("worker:0", "live"),
        ("worker:1", "lost"),
        ("worker:2", "failed"),
    ]
    chief.leave()
    assert job.ends() == ["the job is complete"]
    assert "worker:2 left the job: OSError: no space" in job.said


def test_a_dead_workers_heir_goes_on(make: Callable[..., Job]) -> None:
    plan = sgd_plan()
    job = make(workers=1)
    first = job.client(plan, 0)
    now = first.join(first_values(plan, PARAMS))
    first.training.start_training(1, 6)
    for _ in range(2):
        now = first.exchanger.push(gradient_of(plan, 1.0), now.versions, loss=1.0, examples=1, finite=True)
    kill(first)
    until(lambda: job.services[0].status().workers[0].presence == "lost", "the loss")
    successor = job.client(plan, 0)
    now = successor.join(pytest.fail)
    assert now.versions == (2,)
    last, applied = train(successor, plan, now, 1.0)
    assert (last.global_step, applied) == (6, 4)
    successor.leave()
    assert job.ends() == ["the job is complete"]


def test_a_job_is_shut_down(make: Callable[..., Job]) -> None:
    plan = sgd_plan()
    job = make()
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS))
    connection = job.transport.connect("ps0:1", FAST)
    connection.call("shutdown", encode(m.Shutdown("it is late")), timeout_s=5.0)
    connection.close()
    assert job.ends() == ["shut down: it is late"]
    job.listeners[0].stop(1.0)
    with pytest.raises(PeerError):
        client.exchanger.pull()


# --- a ps that does not behave, as a handler of the test's own


class Silent:
    """Takes workers in, and answers no frame of a stream; or sends what it is told to."""

    def __init__(self, answer: Callable[[Stream, Frame], None] | None = None) -> None:
        self.answer = answer
        self.over = threading.Event()

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:  # noqa: ARG002 - the seam has it
        if action == "leave":
            return encode(m.JobState(0, 0, 0, True, ()))
        if action == "join":
            decode(body, m.Join, "a worker")
        return encode(m.Joined(worker=0, lease_s=5.0, defined=True, initialised=True))

    def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:  # noqa: ARG002 - the seam has it
        while not self.over.is_set():
            frame = stream.receive(0.02)
            if frame is not None and self.answer is not None:
                self.answer(stream, frame)

    def tensors(self) -> list[Any]:
        return []

    def read(self, name: str) -> Any:
        raise Refused(name)


def join_a(handler: Silent, **timeouts: float) -> BaseException:
    """What a worker gets that joins a ps like this."""
    transport, plan = MemoryTransport(), sgd_plan()
    times = Timeouts(**{"heartbeat_s": 0.05, "lease_s": 1.0, "start_s": 5.0, "grace_s": 0.5, **timeouts})
    listener = transport.listen("ps0:1", handler, times)
    said: list[str] = []
    client = JobClient(
        Cluster(spec=spec_of(1, 2), task=Task("worker", 1)), plan, transport=transport, timeouts=times, say=said.append
    )
    try:
        with pytest.raises(PeerError) as caught:
            client.join(pytest.fail)
    finally:
        client.leave("it failed")
        handler.over.set()
        listener.stop(1.0)
    return caught.value


def test_a_ps_that_hangs() -> None:
    error = join_a(Silent(), stall_s=0.3)
    assert isinstance(error, DeadlineExceeded)
    assert "for ps:0 at ps0:1 to send the params; check that it is not overloaded or stopped" in str(error)


ANSWERS: list[tuple[Callable[[Stream, Frame], None], str]] = [
    (lambda stream, _: stream.send(b"\xc1\xc1"), "ps:0 at ps0:1 sent an invalid"),
    (lambda stream, _: stream.send(encode(m.Pull())), "sent an invalid"),
    (
        lambda stream, _: stream.send(encode(m.Params(0, 0, 0, False, "")), [np.zeros(3, np.float32)]),
        "ps:0 at ps0:1 sent params whose size is not the model's",
    ),
    (lambda stream, _: stream.send(encode(m.Failure("I am tired"))), "ps:0 at ps0:1 refused: I am tired"),
    (lambda stream, _: stream.close(), "ps0:1"),
]


@pytest.mark.parametrize(("answer", "words"), ANSWERS, ids=["garbage", "upward", "size", "failure", "closed"])
def test_a_ps_that_answers_wrongly(answer: Callable[[Stream, Frame], None], words: str) -> None:
    assert words in str(join_a(Silent(answer)))


def test_a_large_push_reaches_every_ps_though_one_is_slow_to_take_it(
    make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainband.ps.worker.exchange.AT_ONCE_BYTES", 1)
    plan = sgd_plan(2)
    job = make(ps=2)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.start_training(1, 5)
    slow, other = (link.stream for link in client._links)  # noqa: SLF001
    assert slow is not None
    assert other is not None
    taken, waited = threading.Event(), []
    send, send_other = slow.send, other.send

    def slowly(*frame: Any) -> None:
        waited.append(taken.wait(60.0))  # until the other has its part
        send(*frame)

    def at_once(*frame: Any) -> None:
        send_other(*frame)
        taken.set()

    monkeypatch.setattr(slow, "send", slowly)
    monkeypatch.setattr(other, "send", at_once)
    now = client.exchanger.push(gradient_of(plan, 1.0), now.versions, loss=1.0, examples=1, finite=True)
    assert waited == [True]
    assert now.versions == (1, 1)


def nothing_to_restore() -> RestoreFrom:
    """A job that may wait for its ps to come back, and has no checkpoint yet."""
    return RestoreFrom(candidates=lambda: (), worker_state=lambda _: {})


def break_off(client: JobClient) -> None:
    """What a network does that loses a connection."""
    stream = client._links[0].stream  # noqa: SLF001 - nobody else may
    assert stream is not None
    stream.close()


def test_a_stream_that_breaks_off_is_opened_again_and_the_push_sent_again(make: Callable[..., Job]) -> None:
    job = make()
    plan = plan_of(PARAMS, optax.sgd(0.1))
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS), nothing_to_restore())
    client.training.start_training(1, 10)
    client.training.await_training(1)
    break_off(client)
    now = client.exchanger.push(gradient_of(plan, 1.0), now.versions, loss=1.0, examples=8, finite=True)
    assert (now.versions, now.applied) == ((1,), True)
    now = client.exchanger.push(gradient_of(plan, 1.0), now.versions, loss=1.0, examples=8, finite=True)
    assert now.versions == (2,)
    assert any("resumes when it returns" in line for line in job.heard)


def test_a_push_whose_answer_was_lost_is_not_applied_twice(make: Callable[..., Job]) -> None:
    job = make()
    plan = plan_of(PARAMS, optax.sgd(0.1))
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS), nothing_to_restore())
    client.training.start_training(1, 10)
    client.training.await_training(1)
    client.exchanger.send(gradient_of(plan, 1.0), now.versions, loss=1.0, examples=8, finite=True)
    until(lambda: job.services[0].status().version == 1, "the update")
    break_off(client)
    now = client.exchanger.collect()
    assert now.versions == (1,)
    assert job.services[0].status().version == 1


def test_without_checkpoints_a_ps_that_is_gone_is_not_waited_for(make: Callable[..., Job]) -> None:
    job = make()
    plan = plan_of(PARAMS, optax.sgd(0.1))
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.start_training(1, 10)
    client.training.await_training(1)
    break_off(client)
    with pytest.raises(StreamClosed, match="ps:0 has gone"):
        client.exchanger.push(gradient_of(plan, 1.0), now.versions, loss=1.0, examples=8, finite=True)


class Threadless(SystemRuntime):
    """A machine on which no more threads can be started."""

    def thread(self, work: Callable[[], object], name: str) -> Thread:
        thread = super().thread(work, name)
        thread.start = self.refuse  # type: ignore[method-assign]
        return thread

    @staticmethod
    def refuse() -> None:
        raise ResourceExhausted("no more threads")


def test_one_that_can_have_no_threads_leaves_with_that_error(make: Callable[..., Job]) -> None:
    job = make(ps=2, workers=1)
    plan = sgd_plan(ps=2)
    client = job.client(plan, 0, runtime=Threadless())
    with pytest.raises(ResourceExhausted, match="no more threads") as caught:
        client.join(first_values(plan, PARAMS))
    client.leave(f"{type(caught.value).__name__}: {caught.value}")
    assert "worker:0 left the job: ResourceExhausted: no more threads" in job.said
