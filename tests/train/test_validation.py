"""Validation on the way: how often, what is the best, and when enough is enough."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.train.fakes import ONES, FakeEngine, FakeStrategy, lines_with, mean_model, reports, trainer

from trainband.checkpoint import CheckpointDirectory, Retention
from trainband.errors import DataError, ModelError
from trainband.strategies import StepReport
from trainband.train import EarlyStopping, Hook, MonitoredSession, ValidationHook

BETTER: list[tuple[EarlyStopping, float, float | None, bool]] = [
    # criterion, value, best so far -> better
    (EarlyStopping(), 1.0, None, True),
    (EarlyStopping(), 0.9, 1.0, True),
    (EarlyStopping(), 1.0, 1.0, False),
    (EarlyStopping(min_delta=0.2), 0.9, 1.0, False),
    (EarlyStopping(min_delta=0.2), 0.7, 1.0, True),
    (EarlyStopping(), math.nan, None, False),
    (EarlyStopping(), -math.inf, 1.0, False),
    (EarlyStopping(metric="accuracy"), 0.9, 0.8, True),
    (EarlyStopping(metric="accuracy"), 0.7, 0.8, False),
    (EarlyStopping(metric="accuracy", min_delta=0.2), 0.9, 0.8, False),
    (EarlyStopping(metric="accuracy", mode="min"), 0.7, 0.8, True),
    (EarlyStopping(metric="top_error"), 0.7, 0.8, True),
    *[
        (EarlyStopping(metric=name), 0.7, 0.8, True)
        for name in ("Loss", "mae", "val_rmse", "top5_err", "nll", "perplexity", "cross_entropy", "divergence", "wer")
    ],
    *[(EarlyStopping(metric=name), 0.9, 0.8, True) for name in ("auc", "answers", "terrain_iou", "concern")],
    (EarlyStopping(metric="loss", mode="max"), 0.9, 0.8, True),
]


@pytest.mark.parametrize(("criterion", "value", "best", "better"), BETTER, ids=range(len(BETTER)))
def test_better(criterion: EarlyStopping, value: float, best: float | None, better: bool) -> None:
    assert criterion.better(value, best) is better


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mode": "best"}, "EarlyStopping.mode must be auto, min or max, got 'best'"),
    ({"patience": 0}, "EarlyStopping.patience must be at least 1 validation, got 0"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_arguments_are_checked(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EarlyStopping(**arguments)


def test_early_stopping_needs_a_validation() -> None:
    with pytest.raises(DataError, match="early_stopping needs a validation; pass validation="):
        mean_model().fit([ONES], 5, early_stopping=EarlyStopping())


def quiet(_: str) -> None:
    """Hears nothing."""


EVERY: list[tuple[int | None, int | None, int, list[int]]] = [
    # every, steps, batches in the list -> global steps that are validated
    (3, 7, 2, [3, 6, 7]),
    (3, 6, 2, [3, 6]),
    (None, 30, 2, list(range(3, 31, 3))),
    (None, 5, 2, [1, 2, 3, 4, 5]),
    (2, None, 5, [2, 4, 5]),
    (100, 5, 2, [5]),
]


@pytest.mark.parametrize(("every", "steps", "count", "validated"), EVERY, ids=range(len(EVERY)))
def test_how_often(every: int | None, steps: int | None, count: int, validated: list[int]) -> None:
    said: list[str] = []
    made = mean_model(say=said.append)
    result = made.fit([ONES] * count, steps, validation=[ONES, ONES * 3], every=every)
    assert [one.global_step for one in result.evaluations] == validated
    first = result.evaluations[0]
    assert first.examples == 8
    assert first.loss == (1 - 0.5 * validated[0]) * 2
    assert len(lines_with(said, "validation: ")) == len(validated)


def test_a_worker_that_is_not_the_chief_validates_nothing() -> None:
    engine = FakeEngine(reports(1.0, 1.0))
    engine.is_chief = False
    result = trainer(strategy=FakeStrategy(engine)).fit([ONES] * 2, validation=[ONES], every=1)
    assert result.evaluations == ()


def valley(**changes: Any) -> Any:
    """A model whose param is its global step from 0 on; the validation's loss is least at 4."""
    return mean_model(
        init=lambda _: {"w": jnp.zeros(())},
        loss=lambda params, batch: (
            jnp.where(batch.mean() > 0, -2 * params["w"], jnp.abs(params["w"] - 4) + 1),
            {"height": -jnp.abs(params["w"] - 6), "nothing": jnp.nan * params["w"]},
        ),
        **changes,
    )


CHECK = [np.zeros(4, np.float32)]

STOPS: list[tuple[EarlyStopping, int, str]] = [
    # criterion -> step where the training ends, and why
    (EarlyStopping(patience=1), 5, "loss has not improved on 1.0 in 1 validations"),
    (EarlyStopping(patience=3), 7, "loss has not improved on 1.0 in 3 validations"),
    (EarlyStopping(metric="height", patience=2), 8, "height has not improved on 0.0 in 2 validations"),
    (EarlyStopping(metric="height", mode="min", patience=3), 4, "height has not improved on -5.0 in 3 validations"),
    (EarlyStopping(metric="nothing", patience=2), 2, "nothing has not improved on None in 2 validations"),
]


@pytest.mark.parametrize(("criterion", "last", "why"), STOPS, ids=range(len(STOPS)))
def test_early_stopping(criterion: EarlyStopping, last: int, why: str) -> None:
    result = valley(say=quiet).fit([ONES], 20, validation=CHECK, every=1, early_stopping=criterion)
    assert (result.global_step, result.stopped) == (last, why)


def test_without_early_stopping_it_goes_on() -> None:
    result = valley(say=quiet).fit([ONES], 20, validation=CHECK, every=1)
    assert result.global_step == 20


def test_a_metric_that_there_is_not() -> None:
    said: list[str] = []
    with pytest.raises(ModelError, match=r"EarlyStopping\.metric is 'accuracy'.* returns only loss, height"):
        valley(say=said.append).fit([ONES], 20, validation=CHECK, early_stopping=EarlyStopping(metric="accuracy"))
    assert not lines_with(said, "validation: ")  # known after the first step


def test_a_metric_of_evaluations_alone() -> None:
    made = mean_model(
        say=quiet, evaluation_loss=lambda params, batch: (params["w"] * batch.mean(), {"width": params["w"]})
    )
    criterion = EarlyStopping(metric="width", mode="max", patience=1)
    result = made.fit([ONES], 20, validation=CHECK, every=1, early_stopping=criterion)
    assert result.stopped.startswith("width has not improved on")


class SavesEachStep(Hook):
    """Has a checkpoint after each step."""

    def after_run(self, session: MonitoredSession, report: StepReport) -> None:
        del report
        session.save(wait=True)


def test_the_best_is_kept(tmp_path: Path) -> None:
    valley(say=quiet).fit(
        [ONES],
        12,
        validation=CHECK,
        every=2,
        checkpoint_dir=tmp_path,
        retention=Retention(keep=2),
        hooks=[SavesEachStep()],
    )
    home = CheckpointDirectory(tmp_path, pytest.fail)
    assert home.best == (4, "loss", 1.0)
    assert home.steps() == [4, 11, 12]
    (best,) = (checkpoint for checkpoint in home.candidates() if checkpoint.global_step == 4)
    assert float(best.read("params/w")) == 4.0
    assert best.manifest.metrics["loss"] == 1.0


def test_a_training_that_goes_on_knows_the_best(tmp_path: Path) -> None:
    valley(say=quiet).fit([ONES], 6, validation=CHECK, every=2, checkpoint_dir=tmp_path)
    valley(say=quiet).fit([ONES], 10, validation=CHECK, every=2, checkpoint_dir=tmp_path)
    assert CheckpointDirectory(tmp_path, pytest.fail).best == (4, "loss", 1.0)


def test_a_hook_of_ones_own() -> None:
    hook = ValidationHook(CHECK, every_steps=2)
    with MonitoredSession(valley(say=quiet), hooks=[hook]) as session:
        for batch in [ONES] * 3:
            session.run(batch)
    assert [(one.global_step, one.loss) for one in hook.evaluations] == [(2, 3.0), (3, 2.0)]
