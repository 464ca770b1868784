"""OneDevice: no more and no less than the loop that a user of optax writes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.strategies.regression import batches, by_hand, model

from trainband.errors import ModelError, NonFiniteGradient, TrainbandError
from trainband.strategies import Model, OneDevice

STEPS = 12


def silent(_text: str) -> None:
    """The tests run on a CPU, which is no news."""


def assert_equal(got: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), got, wanted)


@pytest.mark.parametrize("optimizer", [optax.sgd(0.1, momentum=0.9), optax.adam(1e-2)], ids=["momentum", "adam"])
def test_it_is_the_loop_by_hand(optimizer: Any) -> None:
    replica = OneDevice(say=silent).start(model(optimizer))
    assert (replica.peers.task, replica.peers.is_chief, replica.steps.global_step) == ("local", True, 0)
    assert replica.steps.start_training(STEPS)
    reports = [replica.steps.step(batch) for batch in batches(STEPS)]
    params, losses = by_hand(optimizer, STEPS)
    assert_equal(replica.values.params(), params)
    np.testing.assert_allclose([float(report.loss) for report in reports], losses, rtol=1e-5)
    assert [report.global_step for report in reports] == list(range(1, STEPS + 1))
    assert [report.done for report in reports] == [False] * (STEPS - 1) + [True]
    assert all(report.applied and report.staleness == 0 and not report.refusal for report in reports)


def test_beginnings() -> None:
    replica = OneDevice(say=silent).start(model())
    assert not replica.steps.start_training(0)
    assert replica.steps.start_training(None)
    for batch in batches(3):
        assert not replica.steps.step(batch).done
    assert replica.steps.start_training(5)
    assert [replica.steps.step(batch).done for batch in batches(2)] == [False, True]
    assert replica.steps.global_step == 5
    progress = replica.peers.progress()
    assert progress is not None
    assert (progress.global_step, progress.last_step) == (5, 5)
    assert progress.loss is not None
    assert progress.workers[0].task == "local"


def test_params_are_the_users_own() -> None:
    replica = OneDevice(say=silent).start(model())
    replica.steps.start_training(None)
    before = replica.values.params()
    kept = jax.tree.map(np.copy, before)
    for batch in batches(2):
        replica.steps.step(batch)
    assert_equal(before, kept)
    before["out"]["bias"][:] = 7
    assert not (replica.values.params()["out"]["bias"] == 7).any()


def fragile() -> Model:
    """The batch is the gradient."""
    return Model(
        init=lambda _: {"w": jnp.zeros(3)}, loss=lambda params, batch: params["w"] @ batch, optimizer=optax.sgd(1.0)
    )


NAN, ONES = np.full(3, np.nan, np.float32), np.ones(3, np.float32)


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    replica = OneDevice(say=silent).start(fragile())
    replica.steps.start_training(3)
    assert replica.steps.step(NAN).refusal == ""  # what it came to is looked at when the next step is under way
    np.testing.assert_array_equal(replica.values.params()["w"], np.zeros(3))
    report = replica.steps.step(ONES)
    assert "not finite" in report.refusal
    assert (report.applied, report.global_step, report.done) == (False, 1, False)
    np.testing.assert_array_equal(replica.values.params()["w"], -ONES)
    assert replica.steps.step(ONES).global_step == 2
    report = replica.steps.step(NAN)  # it would be the last, so it is looked at at once
    assert "not finite" in report.refusal
    assert (report.applied, report.global_step, report.done) == (False, 2, False)
    report = replica.steps.step(ONES)
    assert (report.applied, report.global_step, report.done, report.refusal) == (True, 3, True, "")
    np.testing.assert_array_equal(replica.values.params()["w"], -3 * ONES)


def test_a_refusal_that_is_seen_between_two_steps_is_in_the_next_report() -> None:
    replica = OneDevice(say=silent).start(fragile())
    replica.steps.start_training(5)
    replica.steps.step(ONES)
    replica.steps.step(NAN)
    assert replica.steps.global_step == 2  # as is hoped
    replica.steps.settle()
    assert replica.steps.global_step == 1
    report = replica.steps.step(ONES)
    assert (report.applied, report.global_step) == (False, 2)
    assert "not finite (after global step 1" in report.refusal
    assert replica.steps.step(ONES).refusal == ""


def test_many_in_a_row_are_too_many() -> None:
    said: list[str] = []
    replica = OneDevice("cpu", say=said.append).start(fragile())
    replica.steps.start_training(1000)
    for _ in range(99):
        replica.steps.step(NAN)
    replica.steps.step(ONES)
    for _ in range(100):
        replica.steps.step(NAN)
    with pytest.raises(NonFiniteGradient, match=r"100 gradients in a row.*Check the data and the loss"):
        replica.steps.step(ONES)
    assert len([line for line in said if "not finite" in line]) == 2  # once for each row of them


def test_params_that_no_strategy_could_train() -> None:
    with pytest.raises(ModelError, match="int32"):
        OneDevice(say=silent).start(model(init=lambda _: {"n": jnp.zeros(3, jnp.int32)}))


def test_an_optimizer_that_asks_for_the_loss() -> None:
    asking = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau())
    replica = OneDevice(say=silent).start(model(asking))
    assert replica.steps.start_training(1)
    with pytest.raises(ModelError, match=r"missing 1 required.*'value'.*can be a schedule"):
        replica.steps.step(next(batches(1)))


def test_it_serves_nobody() -> None:
    strategy = OneDevice()
    assert not strategy.serves
    with pytest.raises(TrainbandError, match="no parameter servers to serve"):
        strategy.serve()
