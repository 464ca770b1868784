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
    assert (replica.task, replica.is_chief, replica.global_step) == ("local", True, 0)
    assert replica.begin(STEPS)
    reports = [replica.step(batch) for batch in batches(STEPS)]
    params, losses = by_hand(optimizer, STEPS)
    assert_equal(replica.params(), params)
    np.testing.assert_allclose([float(report.loss) for report in reports], losses, rtol=1e-5)
    assert [report.global_step for report in reports] == list(range(1, STEPS + 1))
    assert [report.done for report in reports] == [False] * (STEPS - 1) + [True]
    assert all(report.applied and report.staleness == 0 and not report.refusal for report in reports)


def test_beginnings() -> None:
    replica = OneDevice(say=silent).start(model())
    assert not replica.begin(0)
    assert replica.begin(None)
    for batch in batches(3):
        assert not replica.step(batch).done
    assert replica.begin(5)
    assert [replica.step(batch).done for batch in batches(2)] == [False, True]
    assert replica.global_step == 5
    progress = replica.progress()
    assert progress is not None
    assert (progress.global_step, progress.last_step) == (5, 5)
    assert progress.loss is not None
    assert progress.workers[0].task == "local"


def test_params_are_the_users_own() -> None:
    replica = OneDevice(say=silent).start(model())
    replica.begin(None)
    before = replica.params()
    kept = jax.tree.map(np.copy, before)
    for batch in batches(2):
        replica.step(batch)
    assert_equal(before, kept)
    before["out"]["bias"][:] = 7
    assert not (replica.params()["out"]["bias"] == 7).any()


def fragile() -> Model:
    """The batch is the gradient."""
    return Model(
        init=lambda _: {"w": jnp.zeros(3)}, loss=lambda params, batch: params["w"] @ batch, optimizer=optax.sgd(1.0)
    )


NAN, ONES = np.full(3, np.nan, np.float32), np.ones(3, np.float32)


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    replica = OneDevice(say=silent).start(fragile())
    replica.begin(3)
    assert replica.step(NAN).refusal == ""  # what it came to is looked at when the next step is under way
    np.testing.assert_array_equal(replica.params()["w"], np.zeros(3))
    report = replica.step(ONES)
    assert "not finite" in report.refusal
    assert (report.applied, report.global_step, report.done) == (False, 1, False)
    np.testing.assert_array_equal(replica.params()["w"], -ONES)
    assert replica.step(ONES).global_step == 2
    report = replica.step(NAN)  # it would be the last, so it is looked at at once
    assert "not finite" in report.refusal
    assert (report.applied, report.global_step, report.done) == (False, 2, False)
    report = replica.step(ONES)
    assert (report.applied, report.global_step, report.done, report.refusal) == (True, 3, True, "")
    np.testing.assert_array_equal(replica.params()["w"], -3 * ONES)


def test_a_refusal_that_is_seen_between_two_steps_is_in_the_next_report() -> None:
    replica = OneDevice(say=silent).start(fragile())
    replica.begin(5)
    replica.step(ONES)
    replica.step(NAN)
    assert replica.global_step == 2  # as is hoped
    replica.settle()
    assert replica.global_step == 1
    report = replica.step(ONES)
    assert (report.applied, report.global_step) == (False, 2)
    assert "not finite (after global step 1" in report.refusal
    assert replica.step(ONES).refusal == ""


def test_many_in_a_row_are_too_many() -> None:
    said: list[str] = []
    replica = OneDevice("cpu", say=said.append).start(fragile())
    replica.begin(1000)
    for _ in range(99):
        replica.step(NAN)
    replica.step(ONES)
    for _ in range(100):
        replica.step(NAN)
    with pytest.raises(NonFiniteGradient, match=r"100 gradients in a row.*Look at the data and the loss"):
        replica.step(ONES)
    assert len([line for line in said if "not finite" in line]) == 2  # once for each row of them


def test_params_that_no_strategy_could_train() -> None:
    with pytest.raises(ModelError, match="int32"):
        OneDevice(say=silent).start(model(init=lambda _: {"n": jnp.zeros(3, jnp.int32)}))


def test_it_serves_nobody() -> None:
    strategy = OneDevice()
    assert not strategy.serves
    with pytest.raises(TrainbandError, match="no parameter servers to serve"):
        strategy.serve()
