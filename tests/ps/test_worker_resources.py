"""What a worker computes on and the memory that it uses, from its process to the status of every ps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.programs import until
from tests.ps.jobs import PARAMS, Job, first_values, sgd_plan

from trainband.errors import Refused, ResourceExhausted
from trainband.ps.worker.resources import WorkerResources
from trainband.runtime import SYSTEM, SystemRuntime
from trainband.runtime.memory import PARTS, resident_bytes
from trainband.wire.limits import LIMITS


@pytest.fixture
def job() -> Iterator[Job]:
    """Of two ps."""
    one = Job(ps=2).start()
    yield one
    one.close()


def test_every_ps_tells_of_a_worker_what_its_heartbeats_say(job: Job) -> None:
    plan = sgd_plan(2)
    client = job.client(plan, 0, resources=WorkerResources(SYSTEM, "8 × TPU v5e", lambda: (40 << 30, 128 << 30)))
    client.join(first_values(plan, PARAMS))
    for service in job.services:
        until(lambda: service.status().workers[0].memory_bytes > 0, "a heartbeat")  # noqa: B023
        worker = service.status().workers[0]
        assert worker.device == "8 × TPU v5e"
        assert (worker.device_memory_bytes, worker.device_memory_limit_bytes) == (40 << 30, 128 << 30)
        assert worker.memory_bytes > 10_000_000, "a process with JAX is larger"
        status = service.status()
        assert status.threads > 2
        assert 2 < status.descriptors < status.threads + 500, "it is this process"
        assert abs(status.memory_bytes - resident_bytes()) < 500_000_000, "it is this process"


class Small(SystemRuntime):
    """A machine on which so much memory is available."""

    def __init__(self, available: int) -> None:
        super().__init__()
        self._available = available

    def available_memory(self) -> int:
        return self._available


PARAMS_BYTES = sum(leaf.nbytes for leaf in PARAMS.values())


def test_what_a_ps_and_a_worker_hold_adds_up_to_their_memory(job: Job) -> None:
    plan = sgd_plan(2)
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS))
    until(lambda: bool(job.services[0].status().workers[0].memory_parts), "a heartbeat")
    status = job.services[0].status()
    for task in (status, status.workers[0]):
        assert tuple(task.memory_parts) == PARTS
        assert sum(task.memory_parts.values()) == pytest.approx(task.memory_bytes, rel=0.01)
    assert sum(one.status().memory_parts["params"] for one in job.services) == PARAMS_BYTES
    assert client.membership.resources.held()["params"] == PARAMS_BYTES


def test_a_model_larger_than_the_memory_of_its_ps_is_refused_before_it_is_there() -> None:
    needed = PARAMS_BYTES * 3 // 2
    with closing(Job(runtime=Small(needed - 1)).start()) as job:
        plan = sgd_plan()
        client = job.client(plan, 0, runtime=SYSTEM)
        text = rf"ps:0 needs at least {needed} B .* only {needed - 1} B .* at least 2 ps of this size"
        with pytest.raises(Refused, match=text):
            client.join(first_values(plan, PARAMS))


def test_a_worker_that_cannot_hold_the_model_does_not_join() -> None:
    with closing(Job().start()) as job:
        plan = sgd_plan()
        client = job.client(plan, 0, runtime=Small(PARAMS_BYTES))
        with pytest.raises(ResourceExhausted, match=f"worker:0 needs at least {2 * PARAMS_BYTES} B of memory"):
            client.join(pytest.fail)
        assert job.services[0].status().workers == ()


def test_memory_is_looked_at_once_a_second_however_many_ps_are_told() -> None:
    now, looks = 5.0, 0

    def sample() -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return looks, 80

    resources = WorkerResources(SystemRuntime(lambda: now), "gpu", sample)
    assert [resources.memory().device for _ in range(32)] == [1] * 32
    now = 5.9
    assert resources.memory().device == 1
    now = 6.0
    assert resources.memory().device == 2
    assert looks == 2


def test_no_name_of_a_device_keeps_a_worker_out_of_its_job() -> None:
    device = WorkerResources(SYSTEM, "\x1b[2J\u202e" * 100).device
    assert device.isprintable()
    assert len(device) <= LIMITS.host_length
