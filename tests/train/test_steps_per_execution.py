"""Several steps in one call: the same steps, in fewer calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import trainband
from trainband.checkpoint import CheckpointDirectory
from trainband.errors import DataError, ModelError, TrainingError
from trainband.strategies.base import StepReport

SIZE = 8


def batches(count: int, size: int = SIZE, seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    return [
        (random.normal(size=(size, 5)).astype(np.float32), random.normal(size=size).astype(np.float32))
        for _ in range(count)
    ]


def loss(params: Any, batch: Any, key: Any) -> Any:
    """With a random key, so that every step counts that draws one."""
    inputs, targets = batch
    error = inputs @ params["kernel"] + 0.1 * jax.random.normal(key, targets.shape) - targets
    return (error**2).mean(), {"error": error.mean()}


def trainer(per_call: int, **changes: Any) -> trainband.Trainer:
    return trainband.Trainer(
        **{
            "init": lambda _: {"kernel": np.zeros(5, np.float32)},
            "loss": loss,
            "optimizer": optax.adam(0.01),
            "console": False,
            "say": lambda _: None,
            "steps_per_execution": per_call,
            **changes,
        }
    )


class Calls(trainband.Hook):
    """Notes what hooks are told."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def after_run(self, session: trainband.MonitoredSession, report: StepReport) -> None:
        del session
        self.reports.append(report)


@pytest.mark.parametrize("place", [list, jax.device_put], ids=["NumPy", "on the device"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("per_call", [2, 5, 100])
def test_they_are_the_same_to_the_bit(per_call: int, accumulate: int, place: Callable[[Any], Any]) -> None:
    """Up to a step within a call, and from there on to the end of the data, which is within one too."""
    found = []
    data = place(batches(14))
    for steps_per_execution in (1, per_call):
        trained = trainer(steps_per_execution, accumulate=accumulate)
        first = trained.fit(data, 33)
        second = trained.fit(data)
        found.append((trained.params["kernel"], first, second))
    (one, *results), (other, *others) = found
    np.testing.assert_array_equal(one, other)
    for mine, theirs in zip(results, others, strict=True):
        np.testing.assert_array_equal(mine.history, theirs.history)
        assert (mine.global_step, mine.steps, mine.examples) == (theirs.global_step, theirs.steps, theirs.examples)
        assert mine.stopped == theirs.stopped
    assert results[0].global_step == 33


@pytest.mark.parametrize(
    "switches", [{"per_call": 4}, {"per_call": 1, "accumulate": 2}, {"per_call": 3, "accumulate": 2}]
)
def test_a_loader_may_use_its_memory_again(switches: dict[str, int]) -> None:
    """What is taken for one step or call must not change when the next batch is written to where it lies."""

    def reused() -> Iterator[Any]:
        room = tuple(np.empty_like(leaf) for leaf in batches(1)[0])
        for batch in batches(12):
            for array, leaf in zip(room, batch, strict=True):
                array[:] = leaf
            yield room

    found = []
    for data in (iter(batches(12)), reused()):
        trained = trainer(**switches)
        trained.fit(data)
        found.append(trained.params["kernel"])
    np.testing.assert_array_equal(*found)


def test_hooks_come_after_each_call() -> None:
    calls = Calls()
    result = trainer(4).fit(batches(10), 10, hooks=[calls])
    assert [report.global_step for report in calls.reports] == [4, 8, 10]
    assert [report.steps for report in calls.reports] == [4, 4, 2]
    assert [float(report.loss) for report in calls.reports] == [result.history[i, 1] for i in (3, 7, 9)]
    assert all(np.isfinite(report.metrics["error"]) for report in calls.reports)


def test_refused_gradients_are_counted_and_made_up_for() -> None:
    data = batches(9)
    data[2][0][:] = data[3][0][:] = data[7][0][:] = np.nan
    found = []
    for per_call in (1, 4):
        trained = trainer(per_call)
        result = trained.fit(data, 20)
        assert (result.global_step, result.refused) == (20, 9)
        result = trained.fit(data)
        assert (result.global_step, result.refused) == (26, 3)
        found.append(trained.params["kernel"])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("bad", [(1,), (2,), (0, 1, 2), (5,), (8, 9)])
def test_refusals_near_an_end(bad: tuple[int, ...]) -> None:
    """Within what is too little for a call, at its end, and in the last whole call."""
    data = batches(10)
    for index in bad:
        data[index][0][:] = np.nan
    found = []
    for per_call in (1, 4):
        trained = trainer(per_call)
        results = [trained.fit(data[:3]), trained.fit(data), trained.fit(data, 7)]
        steps = [(result.global_step, result.steps, result.examples, result.refused) for result in results]
        found.append((steps, trained.params["kernel"].tolist(), [result.history[-1, 0] for result in results]))
    assert found[0] == found[1]


def test_a_training_goes_on_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """A checkpoint is of the end of the call in which its step is, and knows the place in the data there."""
    whole = trainer(4)
    whole.fit(batches(13), 26)
    for steps in (10, 26):
        trained = trainer(4)
        trained.fit(batches(13), steps, checkpoint_dir=tmp_path, save_steps=5)
    np.testing.assert_array_equal(trained.params["kernel"], whole.params["kernel"])
    # 5 is in the second call, which ends at 8; then 10 is the end of the first script. The second resumes from there.
    saved = set(CheckpointDirectory(tmp_path, pytest.fail).steps())
    assert {8, 10, 18, 26} <= saved <= {8, 10, 18, 22, 26}  # none is begun while another is written


def test_batches_of_several_shapes() -> None:
    """Each call computes batches of one shape."""
    data = [*batches(5), *batches(2, size=3), *batches(6)]
    calls = Calls()
    found = []
    for per_call, hooks in ((1, []), (4, [calls])):
        trained = trainer(per_call, fixed_shapes=False)
        result = trained.fit(data, hooks=hooks)
        assert (result.global_step, result.examples) == (13, 11 * SIZE + 2 * 3)
        found.append(trained.params["kernel"])
    np.testing.assert_array_equal(*found)
    assert [report.steps for report in calls.reports] == [4, 1, 2, 4, 2]


def test_no_loss_escapes_the_nan_hook() -> None:
    data = batches(6)
    data[1][0][:] = np.nan  # within a call
    with pytest.raises(TrainingError, match="the loss of local is nan"):
        trainer(3).fit(data, hooks=[trainband.NanHook()])


def test_a_batch_alone_is_refused() -> None:
    with (
        pytest.raises(
            DataError, match=r"steps_per_execution=3 a call takes the input of that many steps.*session.feed"
        ),
        trainband.MonitoredSession(trainer(3), hooks=[trainband.StopAtStepHook(num_steps=3)]) as session,
    ):
        session.run(batches(1)[0])


@pytest.mark.parametrize("per_call", [0, -1])
def test_less_than_one_is_refused(per_call: int) -> None:
    with pytest.raises(
        ModelError, match=f"steps_per_execution must be a whole number of steps, 1 or more, got {per_call}"
    ):
        trainer(per_call)


def test_where_each_step_moves_the_params_it_is_one() -> None:
    assert trainer(4, strategy=trainband.Mirrored(central_storage=True)).join().steps.steps_per_execution == 1
