"""Circles: workers that wait for one another, each at another ps."""

from __future__ import annotations

import optax
from tests.ps.jobs import FAST, PARAMS, FakeClock, gradient_of, spec_of
from tests.ps.plans import blocks_of, plan_of

from trainband.cluster import Cluster, Task
from trainband.ps.rules import Sync
from trainband.ps.rules.base import Push
from trainband.ps.service.service import ParameterService
from trainband.ps.service.stall_detector import DEADLOCK_S
from trainband.runtime import SystemRuntime
from trainband.version import VERSION
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import encode


def ps_where_worker_0_waits_for_worker_1() -> tuple[ParameterService, FakeClock, list[str]]:
    plan = plan_of(PARAMS, optax.sgd(1.0), rule=Sync(), ps=2)
    clock, said = FakeClock(), list[str]()
    cluster = Cluster(spec=spec_of(2, 3), task=Task("ps", 0))
    service = ParameterService(
        cluster, timeouts=FAST, say=said.append, runtime=SystemRuntime(clock), incarnation="life"
    )
    for worker in range(3):
        service.call(
            "join", encode(m.Join(f"worker:{worker}", f"life {worker}", "here", 1, plan.description, version=VERSION))
        )
    program = plan.shard_optimizer(0).export()
    state = plan.shard_optimizer(0).state_contents
    service.call(
        "define", encode(m.Define(0, "life 0", 0, plan.description, program.initialise, program.update, state))
    )
    replica = service.replicas.by_shard[0]
    replica.initialise(blocks_of(plan, PARAMS)[0])
    service.call("begin", encode(m.Begin(0, "life 0", 1, 10)))
    gradient = gradient_of(plan, 1.0)[0]
    replica.push(Push(0, 1, 0, 1), gradient)
    replica.push(Push(2, 1, 0, 1), gradient)
    return service, clock, said


def beat(service: ParameterService, worker: int, *blocked_by: str) -> None:
    service.call("heartbeat", encode(m.Heartbeat(worker, f"life {worker}", blocked_by)))


def poll(service: ParameterService) -> None:
    service.stall_detector.break_deadlocks()


def test_a_circle_is_broken() -> None:
    service, clock, said = ps_where_worker_0_waits_for_worker_1()
    beat(service, 1, "worker:0")
    poll(service)
    assert service.status().version == 0
    clock.now += DEADLOCK_S
    poll(service)
    assert service.status().version == 1
    assert said[-1].startswith("deadlock between worker:1 and another worker")


def test_a_longer_circle_is_broken() -> None:
    service, clock, _ = ps_where_worker_0_waits_for_worker_1()
    beat(service, 1, "worker:3", "worker:2")
    for _ in range(2):
        poll(service)
        clock.now += DEADLOCK_S
    poll(service)
    assert service.status().version == 1


def test_a_worker_that_is_only_slow_is_waited_for() -> None:
    service, clock, _ = ps_where_worker_0_waits_for_worker_1()
    beat(service, 0, "worker:1")
    for _ in range(3):
        poll(service)
        clock.now += DEADLOCK_S
    assert service.status().version == 0


def test_a_circle_that_was_only_seen_once_is_none() -> None:
    service, clock, _ = ps_where_worker_0_waits_for_worker_1()
    for blocked_by in (("worker:0",), (), ("worker:0",)):
        beat(service, 1, *blocked_by)
        poll(service)
        clock.now += DEADLOCK_S
    assert service.status().version == 0
