"""Standbys: two ps in one process, one of which dies; nothing that was acknowledged is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import optax
import pytest
from numpy.typing import NDArray
from tests.ps.jobs import FAST, PARAMS, Job, first_values, gradient_of, in_thread
from tests.ps.plans import plan_of, tree_of

from trainband.errors import CheckpointError
from trainband.ps import keeper as keeping
from trainband.ps.client import Exchange, JobClient
from trainband.ps.description import Plan
from trainband.ps.keeper import Keeper
from trainband.ps.rules import Async, Bounded, Sync, UpdateRule
from trainband.wire import messages as m
from trainband.wire.codec import encode

QUICK = replace(FAST, lease_s=3.0)


def replicated(rule: UpdateRule | None = None, ps: int = 2) -> Plan:
    """SGD with momentum, each shard with a standby."""
    return plan_of(PARAMS, optax.sgd(1.0, momentum=0.5), ps=ps, rule=rule, replicas=1)


@pytest.fixture
def make() -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(**arguments: object) -> Job:
        job = Job(**{"timeouts": QUICK, **arguments}).start()  # type: ignore[arg-type]
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
    job.services[index].stop()
    for keeper in job.services[index]._keepers.values():  # noqa: SLF001
        keeper.stop(1.0)
    job.listeners[index].stop(0.0)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 40.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def standbys(said: list[str]) -> int:
    """How often a shard has got a standby."""
    return sum(" is the standby of shard " in line for line in said)


def push(client: JobClient, plan: Plan, now: Exchange, value: float = 1.0) -> Exchange:
    return client.push(gradient_of(plan, value), now.versions, loss=1.0, examples=1, finite=True)


@pytest.mark.parametrize("dying", [0, 1])
def test_a_ps_dies_and_nothing_is_lost(make: Callable[..., Job], dying: int) -> None:
    plan = replicated()
    job = make(ps=2, workers=1)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.await_begin(1, 20)
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
    wait_until(lambda: standbys(job.said[said:]) == 2, "the new standbys")
    for _ in range(10):
        now = push(client, plan, now)
    assert now.versions == (20, 20)
    assert now.done
    client.leave()


def reference(steps: int) -> dict[str, NDArray[np.float32]]:
    """What SGD with momentum makes of PARAMS by so many gradients of one."""
    moved, velocity = 0.0, 0.0
    for _ in range(steps):
        velocity = 0.5 * velocity + 1.0
        moved += velocity
    return {name: value - moved for name, value in PARAMS.items()}


RULES = [Async(), Sync(), Sync(aggregate=5), Bounded(staleness=1)]


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

    def train(client: JobClient, now: Exchange) -> Exchange:
        client.await_begin(1, steps)
        while not now.done:
            now = push(client, plan, now)
            versions[0] = max(versions[0], *now.versions)
            time.sleep(0.01 if isinstance(rule, Sync) else 0.03)
        client.leave()
        return now

    runs = [in_thread(partial(train, client, now), "train") for client, now in zip([chief, *others], nows, strict=True)]
    wait_until(lambda: versions[0] > 20, "the first updates")
    kill_ps(job, dying)
    wait_until(lambda: any("takes shard" in line for line in job.said), "the takeover")
    at = versions[0]
    wait_until(lambda: versions[0] > at + 10, "updates without it")
    said = len(job.said)
    job.start_ps(dying)
    wait_until(lambda: standbys(job.said[said:]) == 2, "the new standbys")
    later = versions[0]
    wait_until(lambda: versions[0] > later + 10, "updates with it")
    assert versions[0] < steps
    kill_ps(job, 1 - dying)
    lasts = [run.result(60.0) for run in runs]
    for last in lasts:
        assert last.versions == (steps, steps)
    expected = reference(steps)
    for name, leaf in tree_of(plan, lasts[0].params).items():
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-5)


def test_both_ps_die(make: Callable[..., Job]) -> None:
    """Nothing can help: the chief says so, and ends."""
    plan = replicated()
    job = make(ps=2, workers=1)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.await_begin(1, 20)
    now = push(client, plan, now)
    for index in (0, 1):
        kill_ps(job, index)
    for index in (0, 1):
        job.start_ps(index)
    with pytest.raises(CheckpointError, match="has lost its values, and this job saves none"):
        push(client, plan, now)


def test_a_primary_that_was_away_finds_its_epoch_over(make: Callable[..., Job]) -> None:
    """It may have updates that nobody knows of; it gives them up, and follows the one that has taken over."""
    plan = replicated()
    job = make(ps=2, workers=1)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.await_begin(1, 30)
    now = push(client, plan, now)
    away = job.services[0]
    stopped = threading.Event()
    for keeper in away._keepers.values():  # noqa: SLF001 - as if the machine stood still
        stand_still(keeper, stopped)
    now = push(client, plan, now)
    assert any("ps:1 takes shard 0 over" in line for line in job.said)
    stopped.set()
    wait_until(lambda: any("ps:0 does not hold shard 0 any more" in line for line in job.said), "the fence")
    wait_until(lambda: standbys(job.said) == 3, "the return as a standby")
    while not now.done:
        now = push(client, plan, now)
    assert now.versions == (30, 30)
    for name, leaf in tree_of(plan, now.params).items():
        np.testing.assert_allclose(leaf, reference(30)[name], rtol=1e-5)
    client.leave()


def stand_still(keeper: Keeper, until: threading.Event) -> None:
    """Its connections deliver nothing, in either direction, until then."""
    exchange, watch = keeper._exchange, keeper._watch  # noqa: SLF001

    def held(work: Callable[[], None]) -> Callable[[], None]:
        def wait_and_work() -> None:
            until.wait(20.0)
            work()

        return wait_and_work

    keeper._exchange, keeper._watch = held(exchange), held(watch)  # type: ignore[method-assign]  # noqa: SLF001


def test_a_standby_of_another_version_is_none(make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """It might not come to the same values; the job goes on, and says so."""
    monkeypatch.setattr(keeping, "VERSION", "9.9.9")
    plan = replicated()
    job = make(ps=2, workers=1, timeouts=replace(QUICK, stall_s=1.0))
    client = job.client(plan, 0)
    joining = in_thread(lambda: client.join(first_values(plan, PARAMS)), "chief")
    wait_until(lambda: any("WARNING: shard 0 has no standby" in line for line in job.said), "the warning")
    assert any("runs 9.9.9: run the same version on both" in line for line in job.said)
    assert standbys(job.said) == 0
    now = joining.result(20.0)
    client.await_begin(1, 3)
    while not now.done:
        now = push(client, plan, now)
    assert now.versions == (3, 3)
    assert any("WARNING: shard 0 has no standby yet" in line for line in job.heard)
    client.leave()
