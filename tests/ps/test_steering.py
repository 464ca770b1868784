"""Steering: the chief sets a number of the optimizer's state while the job goes on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import optax
import pytest
from tests.programs import until
from tests.ps.jobs import FAST, PARAMS, Job, first_values
from tests.ps.plans import plan_of, tree_of
from tests.ps.test_replication import kill_ps, make, push, standbys

from trainband.errors import ModelError, Refused
from trainband.ps.worker.plan import Plan

__all__ = ["make"]  # the fixture

RATE = "hyperparams/learning_rate"
FIRST, SECOND = 1.0, 0.25


def steerable(standbys: int = 0) -> Plan:
    """SGD whose learning rate is part of its state."""
    return plan_of(PARAMS, optax.inject_hyperparams(optax.sgd)(FIRST), ps=2, standbys=standbys)


def require(plan: Plan, params: object, moved: float) -> None:
    """Every element has moved so far, by gradients of one."""
    for name, leaf in tree_of(plan, params).items():
        np.testing.assert_allclose(leaf, PARAMS[name] - moved, rtol=1e-6)


def test_every_ps_has_the_new_rate_from_the_next_update_on(make: Callable[..., Job]) -> None:
    plan = steerable()
    job = make(ps=2, workers=1, timeouts=FAST)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 10)
    now = push(client, plan, now)
    assert [ps.status().learning_rate for ps in job.services] == [FIRST] * 2
    client.training.steer({RATE: SECOND})
    for _ in range(2):
        now = push(client, plan, now)
        assert [ps.status().learning_rate for ps in job.services] == [SECOND] * 2
    require(plan, now.params, FIRST + 2 * SECOND)
    client.leave()


def test_whoever_asks_sees_the_rate_of_a_schedule_and_disturbs_no_update(make: Callable[..., Job]) -> None:
    rates = [1.0, 0.5, 0.25, 0.125, 0.0625]
    plan = plan_of(PARAMS, optax.inject_hyperparams(optax.sgd)(lambda count: 0.5**count), ps=2)
    job = make(ps=2, workers=1, timeouts=FAST)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 10)
    for made, rate in enumerate(rates, 1):
        now = push(client, plan, now)
        assert [ps.status().learning_rate for ps in job.services] == [rate] * 2
        require(plan, now.params, sum(rates[:made]))
    client.leave()


def test_a_standby_has_it_too(make: Callable[..., Job]) -> None:
    plan = steerable(standbys=1)
    job = make(ps=2, workers=1)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 10)
    until(lambda: standbys(job.said) == 2, "the standbys")
    now = push(client, plan, now)
    client.training.steer({RATE: SECOND})
    now = push(client, plan, now)
    kill_ps(job, 0)
    now = push(client, plan, now)
    require(plan, now.params, FIRST + 2 * SECOND)
    client.leave()


def test_what_is_being_saved_stays_as_it_was(make: Callable[..., Job]) -> None:
    plan = steerable()
    job = make(ps=2, workers=1, timeouts=FAST)
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 10)
    (replica,) = job.services[0].replicas.by_shard.values()
    shard = replica.require_updater().shard
    snapshot = shard.snapshot()
    before = [np.array(leaf) for leaf in snapshot.state]
    client.training.steer({RATE: SECOND})
    shard.release_snapshot(snapshot)
    for old, leaf in zip(before, snapshot.state, strict=True):
        np.testing.assert_array_equal(old, leaf)
    assert any(not np.array_equal(old, leaf) for old, leaf in zip(before, shard._state, strict=True))  # noqa: SLF001
    client.leave()


def test_a_number_that_is_not_there_is_refused_with_those_that_are(make: Callable[..., Job]) -> None:
    plan = steerable()
    job = make(ps=2, workers=1, timeouts=FAST)
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS))
    with pytest.raises(ModelError, match=r"no number 'momentum' that could be set; it has .*learning_rate"):
        client.training.steer({"momentum": 0.5})
    client.leave()


def test_only_the_chief_steers(make: Callable[..., Job]) -> None:
    plan = steerable()
    job = make(ps=2, workers=2, timeouts=FAST)
    chief, other = job.client(plan, 0), job.client(plan, 1)
    chief.join(first_values(plan, PARAMS))
    other.join(first_values(plan, PARAMS))
    chief.training.await_training(1, 10)
    with pytest.raises(Refused, match="steer the optimizer"):
        other.training.steer({RATE: SECOND})
    chief.leave()
    other.leave()
