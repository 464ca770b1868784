"""What a training and an evaluation come to, as frozen records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError, YourError
from trainband.model.batch import examples_in
from trainband.model.variables import PyTree
from trainband.runtime.step_times import TimeSpent


@dataclass(frozen=True, kw_only=True, slots=True)
class FitResult:
    """One task's view of a training.

    Attributes:
      task: whose view this is.
      global_step: updates made by the whole job, at the end.
      updates: made by the whole job, from when this task began this training to its last step.
      timed_updates: of these, those that were made in `seconds`.
      steps: steps that this task made.
      examples: that this task trained on.
      seconds: from the first step's end (so without compiling) to the last's; from the first call's, where several
        steps are computed in one.
      stopped: why it ended, in words.
      refused: gradients of this task that were not finite.
      mean_staleness: of this task's updates, in updates.
      history: float64[n, 2]: (global step, loss of the batch) after each of this task's steps.
      evaluations: those of the validation, on the chief.
      spent: what this task's time went on, from the first step's end; `None` without a step.
    """

    task: str
    global_step: int
    updates: int
    timed_updates: int
    steps: int
    examples: int
    seconds: float
    stopped: str
    refused: int
    mean_staleness: float
    history: NDArray[np.float64] = field(repr=False)
    evaluations: tuple[Evaluation, ...] = ()
    spent: TimeSpent | None = field(default=None, repr=False)

    @property
    def non_finite_losses(self) -> int:
        """How many of this task's steps had a loss that was NaN or infinite."""
        return int(np.count_nonzero(~np.isfinite(self.history[:, 1])))

    @property
    def steps_per_second(self) -> float:
        """Global steps per second of the whole job, without the first step."""
        return self.timed_updates / self.seconds if self.seconds > 0 else 0.0

    def plot(self, path: str | Path, title: str = "training") -> Path:
        """Draws the loss by global step into a PNG (log scale; the line is a running mean). Returns its path.

        Raises:
          YourError: matplotlib is not installed; it comes with `pip install trainband[plot]`.
        """
        try:
            import matplotlib as mpl  # 0.5 s, which only who wants a picture pays
        except ImportError:
            raise YourError("a picture needs matplotlib: pip install 'trainband[plot]'.") from None
        mpl.use("Agg")
        from matplotlib.figure import Figure

        path = Path(path)
        figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
        axes = figure.subplots()
        steps, losses = self.history[:, 0], self.history[:, 1]
        axes.plot(steps, losses, color="#9ec5e8", linewidth=0.6, label=f"each batch of {self.task}")
        if len(losses) > 1:
            width = max(1, len(losses) // 100)
            smooth = np.convolve(losses, np.full(width, 1 / width), "valid")
            axes.plot(steps[width - 1 :], smooth, color="#0b5394", linewidth=1.6, label=f"mean of {width}")
        if len(losses) and losses.min() > 0:
            axes.set_yscale("log")
        axes.set(xlabel="global step", ylabel="loss", title=title)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        return path


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The mean loss and metrics over the examples of an evaluation, at one global step."""

    loss: float
    metrics: Mapping[str, float]
    examples: int
    global_step: int

    def __str__(self) -> str:
        metrics = "".join(f", {name} {value:.4f}" for name, value in self.metrics.items())
        return f"loss {self.loss:.4f}{metrics} on {self.examples} examples at global step {self.global_step}"


def mean_over_examples(found: Iterable[tuple[PyTree, tuple[Any, Mapping[str, Any]]]], global_step: int) -> Evaluation:
    """The means over all examples of batches, each with its loss and metrics.

    Raises:
      DataError: there are no examples.
    """
    total, loss, metrics = 0, 0.0, dict[str, float]()
    for batch, (batch_loss, batch_metrics) in found:
        count = examples_in(batch)
        total += count
        loss += count * as_float(batch_loss)
        for name, value in batch_metrics.items():
            metrics[name] = metrics.get(name, 0.0) + count * as_float(value)
    if total == 0:
        raise DataError("evaluate: there are no batches to evaluate on.")
    means = {name: value / total for name, value in metrics.items()}
    return Evaluation(loss=loss / total, metrics=means, examples=total, global_step=global_step)


def as_float(value: Any) -> float:
    """A scalar array or number as a float."""
    return float(np.asarray(value))
