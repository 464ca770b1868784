"""Workers that are stuck rather than dead: they give signs of life, and push nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace

import optax
import pytest
from msgspec import structs
from tests.programs import until
from tests.ps.jobs import FAST, PARAMS, FakeClock, Job, first_values, gradient_of, in_thread
from tests.ps.plans import plan_of

from trainband.ps.rules import Sync
from trainband.ps.service.stall_detector import SILENT_S
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.exchange import Exchange
from trainband.ps.worker.plan import Plan
from trainband.runtime import SystemRuntime


def sync_plan(stall_s: float = 0.0) -> Plan:
    """Two workers in lockstep."""
    plan = plan_of(PARAMS, optax.sgd(1.0), rule=Sync())
    return replace(plan, description=structs.replace(plan.description, stall_s=stall_s))


class Watched(Job):
    """A job of two workers whose clock is moved by the tests. Its one ps is asked what it looks at."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        # Nobody is lost as the clock is moved.
        super().__init__(workers=2, timeouts=replace(FAST, lease_s=1e6), runtime=SystemRuntime(self.clock))
        self._looks = 0

    def start(self) -> Watched:
        super().start()
        detector = self.services[0].stall_detector
        look = detector.handle_stalled

        def counted(limit_s: float) -> None:
            look(limit_s)
            self._looks += 1

        detector.handle_stalled = counted  # type: ignore[method-assign]
        return self

    def poll(self) -> None:
        """Waits until the ps has looked for workers that are stuck."""
        last = self._looks + 2  # the next look may have begun
        until(lambda: self._looks >= last, "two looks at the workers")

    def wait(self, seconds: float) -> None:
        """Lets time pass, and the ps look."""
        self.clock.now += seconds
        self.poll()

    def named(self) -> list[str]:
        """What the ps has said of workers that are stuck."""
        return [line for line in self.said if "is alive but has pushed nothing for" in line]

    def stalled(self) -> list[bool]:
        """Which of the workers are stuck."""
        return [worker.stalled_s > 0 for worker in self.services[0].status().workers]


@pytest.fixture
def job() -> Iterator[Watched]:
    with closing(Watched().start()) as made:
        yield made


def two(job: Job, plan: Plan, steps: int) -> tuple[tuple[JobClient, Exchange], tuple[JobClient, Exchange]]:
    """The chief and a worker, in a training of so many steps."""
    chief, other = job.client(plan, 0), job.client(plan, 1)
    now = chief.join(first_values(plan, PARAMS))
    then = other.join(pytest.fail)
    chief.training.start_training(1, steps)
    return (chief, now), (other, then)


def push(client: JobClient, plan: Plan, now: Exchange) -> Exchange:
    return client.exchanger.push(gradient_of(plan, 1.0), now.versions, loss=1.0, examples=1, finite=True)


def pushes(job: Job, client: JobClient, plan: Plan, now: Exchange) -> Future[Exchange]:
    """The push of one that the ps has, and whose update waits for the other worker."""
    pushed = in_thread(lambda: push(client, plan, now), "push")
    until(lambda: job.services[0].status().waiting_for == ("worker:1",), "the push")
    return pushed


def test_a_stuck_worker_is_named_and_waited_for(job: Watched) -> None:
    plan = sync_plan()
    (chief, now), (stuck, then) = two(job, plan, 2)
    pushed = pushes(job, chief, plan, now)
    job.wait(SILENT_S - 1)
    assert job.named() == []
    said = []
    for more_s, silent_s in ((2, SILENT_S + 1), (SILENT_S + 1, 2 * SILENT_S + 2)):
        said.append(f"worker:1 is alive but has pushed nothing for {silent_s:.0f} s; others wait for it")
        job.wait(more_s)
        job.poll()
        assert job.named() == said, "now and then, not at every look"
    assert job.stalled() == [False, True]
    assert not pushed.done()
    push(stuck, plan, then)
    assert pushed.result(20.0).versions == (1,)
    assert job.stalled() == [False, False]


def test_a_push_that_travels_for_long_is_not_stuck(job: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sync_plan(stall_s=SILENT_S + 5)
    (chief, now), (slow, then) = two(job, plan, 2)
    pushed = pushes(job, chief, plan, now)
    membership = job.services[0].membership
    monkeypatch.setattr(membership, "moved_s", lambda member: 0.5 if member.task == "worker:1" else math.inf)
    job.services[0].stall_detector._moved_s = membership.moved_s  # noqa: SLF001
    job.wait(10 * SILENT_S)
    assert job.named() == []
    assert job.stalled() == [False, False]
    push(slow, plan, then)
    assert pushed.result(20.0).versions == (1,)


def test_one_that_nobody_waits_for_is_named_too(job: Watched) -> None:
    plan = plan_of(PARAMS, optax.sgd(1.0))
    plan = replace(plan, description=structs.replace(plan.description, stall_s=SILENT_S + 5))
    (chief, now), (stuck, then) = two(job, plan, 1_000_000)
    then = push(stuck, plan, then)
    for _ in range(10):
        job.wait(SILENT_S / 4)
        now = push(chief, plan, now)
    assert 1 <= len(job.named()) <= 3
    assert all(line.startswith("worker:1 ") and line.endswith("; no one waits for it") for line in job.named())
    assert job.stalled() == [False, True]
    assert job.services[0].status().waiting_for == ()
    assert "is ignored until" not in str(job.said)  # there is nothing to leave it out of
    push(stuck, plan, then)
    assert job.stalled() == [False, False]


def test_slow_steps_are_not_stuck(job: Watched) -> None:
    plan = plan_of(PARAMS, optax.sgd(1.0))
    (chief, now), (slow, then) = two(job, plan, 1_000_000)
    for _ in range(2):
        job.wait(SILENT_S * 2 / 3)
        now, then = push(chief, plan, now), push(slow, plan, then)
    job.wait(2 * SILENT_S)
    assert job.named() == []
    assert job.stalled() == [False, False]
    job.wait(2 * SILENT_S)
    assert len(job.named()) == 2, "five times as long as usual"


def test_a_stuck_worker_is_left_out_if_that_was_asked_for(job: Watched) -> None:
    plan = sync_plan(stall_s=4.0)
    (chief, now), (stuck, then) = two(job, plan, 3)
    pushed = pushes(job, chief, plan, now)
    job.wait(3.0)
    assert not pushed.done()
    job.wait(2.0)
    now = pushed.result(20.0)
    assert now.versions == (1,)
    assert job.named() == ["worker:1 is alive but has pushed nothing for 5 s; it is ignored until its next push"]
    now = push(chief, plan, now)  # without another wait
    assert now.versions == (2,)
    # Its next push is too late for its step, but from then on it counts again.
    late = push(stuck, plan, then)
    assert not late.applied
    last = in_thread(lambda: push(chief, plan, now), "chief")
    push(stuck, plan, late)
    assert last.result(20.0).versions == (3,)
