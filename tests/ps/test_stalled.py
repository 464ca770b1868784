"""Workers that are stuck rather than dead: they give signs of life, and push nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import optax
import pytest
from msgspec import structs
from tests.ps.jobs import PARAMS, Job, first_values, gradient_of, in_thread
from tests.ps.plans import plan_of

from trainband.ps.description import Plan
from trainband.ps.membership import stall_detector
from trainband.ps.rules import Sync
from trainband.ps.worker.client import Exchange, JobClient


def sync_plan(stall_s: float = 0.0) -> Plan:
    """Two workers in step."""
    plan = plan_of(PARAMS, optax.sgd(1.0), rule=Sync())
    return replace(plan, description=structs.replace(plan.description, stall_s=stall_s))


@pytest.fixture
def make() -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(**arguments: object) -> Job:
        job = Job(**arguments).start()  # type: ignore[arg-type]
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.close()


def two(job: Job, plan: Plan, steps: int) -> tuple[tuple[JobClient, Exchange], tuple[JobClient, Exchange]]:
    """The chief and a worker, in a training of so many steps."""
    chief, other = job.client(plan, 0), job.client(plan, 1)
    now = chief.join(first_values(plan, PARAMS))
    then = other.join(pytest.fail)
    chief.begin(1, steps)
    return (chief, now), (other, then)


def push(client: JobClient, plan: Plan, now: Exchange) -> Exchange:
    return client.push(gradient_of(plan, 1.0), now.versions, loss=1.0, examples=1, finite=True)


def test_a_stuck_worker_is_named_and_waited_for(make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_detector, "SILENT_S", 0.3)
    plan = sync_plan()
    job = make(workers=2)
    (chief, now), (stuck, then) = two(job, plan, 2)
    began = time.monotonic()
    pushed = in_thread(lambda: push(chief, plan, now), "chief")
    with pytest.raises(TimeoutError):
        pushed.result(1.5)
    named = [line for line in job.said if line.startswith("worker:1 lives, but has pushed nothing for")]
    assert named
    assert len(named) <= 1 + (time.monotonic() - began) / 0.3  # now and then, not at every look
    status = job.services[0].status()
    assert [worker.stalled_s > 0 for worker in status.workers] == [False, True]
    push(stuck, plan, then)
    assert pushed.result(10.0).versions == (1,)
    assert [worker.stalled_s > 0 for worker in job.services[0].status().workers] == [False, False]


def test_one_that_nobody_waits_for_is_named_too(make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_detector, "SILENT_S", 0.3)
    plan = plan_of(PARAMS, optax.sgd(1.0))
    plan = replace(plan, description=structs.replace(plan.description, stall_s=0.5))
    job = make(workers=2)
    (chief, now), (stuck, then) = two(job, plan, 1_000_000)
    then = push(stuck, plan, then)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        now = push(chief, plan, now)
    named = [line for line in job.said if line.endswith("; nobody waits for it")]
    assert 1 <= len(named) <= 5
    assert all(line.startswith("worker:1 lives, but has pushed nothing for") for line in named)
    assert [worker.stalled_s > 0 for worker in job.services[0].status().workers] == [False, True]
    assert job.services[0].status().waiting_for == ()
    assert "counts no more" not in str(job.said)  # there is nothing to leave it out of
    push(stuck, plan, then)
    assert not any(worker.stalled_s for worker in job.services[0].status().workers)


def test_slow_steps_are_not_stuck(make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(PARAMS, optax.sgd(1.0))
    job = make(workers=2)
    (chief, now), (slow, then) = two(job, plan, 1_000_000)
    for _ in range(2):
        time.sleep(0.5)
        now, then = push(chief, plan, now), push(slow, plan, then)
    monkeypatch.setattr(stall_detector, "SILENT_S", 0.3)
    time.sleep(1.0)
    assert "has pushed nothing" not in str(job.said)
    assert not any(worker.stalled_s for worker in job.services[0].status().workers)


def test_a_stuck_worker_is_left_out_if_that_was_asked_for(make: Callable[..., Job]) -> None:
    plan = sync_plan(stall_s=0.4)
    job = make(workers=2)
    (chief, now), (stuck, then) = two(job, plan, 3)
    now = push(chief, plan, now)
    assert now.versions == (1,)
    assert any("worker:1 lives, but has pushed nothing" in line and "counts no more" in line for line in job.said)
    now = push(chief, plan, now)  # without another wait
    assert now.versions == (2,)
    # Its next push is too late for its step, but from then on it counts again.
    late = push(stuck, plan, then)
    assert not late.applied
    last = in_thread(lambda: push(chief, plan, now), "chief")
    push(stuck, plan, late)
    assert last.result(10.0).versions == (3,)
