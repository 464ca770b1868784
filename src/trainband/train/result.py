"""The results of a training run and of an evaluation, as frozen records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.model.batch import examples_in
from trainband.model.variables import PyTree
from trainband.monitor import html
from trainband.runtime.formatting import duration, printable, rate, size
from trainband.runtime.memory import parts_text
from trainband.runtime.step_times import TimeSpent
from trainband.train.time_advice import advice, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class FitResult:
    """One task's view of a training run.

    Attributes:
      task: the task.
      global_step: updates made by the whole job, at the end.
      updates: made by the whole job, from when this task began this training to its last step.
      timed_updates: of these, those made in `seconds`.
      steps: steps that this task made.
      examples: that this task trained on.
      seconds: from the first step's end (so without compiling) to the last's; from the first call's, if several
        steps are computed in one.
      stopped: why it ended, as text.
      refused: gradients of this task that were not finite.
      mean_staleness: of this task's updates, in updates.
      history: float64[n, 2]: (global step, loss of the batch) after each of this task's steps.
      evaluations: those of the validation, on the chief.
      spent: where this task's time went, from the first step's end; `None` without a step.
      memory_bytes: this task's memory at the end, with the processes that it started; 0 if unknown.
      memory_parts: what that held: `params`, `state`, `gradients`, `versions`, `buffers` and the `rest`; empty if
        unknown, as without ps.
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
    memory_bytes: int = 0
    memory_parts: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def non_finite_losses(self) -> int:
        """How many of this task's steps had a loss that was NaN or infinite."""
        return int(np.count_nonzero(~np.isfinite(self.history[:, 1])))

    @property
    def steps_per_second(self) -> float:
        """Global steps per second of the whole job, without the first step."""
        return self.timed_updates / self.seconds if self.seconds > 0 else 0.0

    @overload
    def plot(self, path: None = None, title: str = "training") -> Figure: ...

    @overload
    def plot(self, path: str | Path, title: str = "training") -> Path: ...

    def plot(self, path: str | Path | None = None, title: str = "training") -> Figure | Path:
        """Draws the loss by global step (log scale; the line is a running mean), and the validations.

        Args:
          path: of the picture, in a format that its suffix names; `None` returns a figure, which a notebook shows.
          title: above it.

        Returns:
          matplotlib's figure, or the path if one was given.

        Raises:
          YourError: matplotlib is not installed; it comes with `pip install trainband[plot]`.
        """
        from trainband.monitor.figure import finished, new_figure

        figure, axes = new_figure()
        steps, losses = self.history[:, 0], self.history[:, 1]
        axes.plot(steps, losses, color="#9ec5e8", linewidth=0.6, label=f"each batch of {_plain(self.task)}")
        if len(losses) > 1:
            width = max(1, len(losses) // 100)
            smooth = np.convolve(losses, np.full(width, 1 / width), "valid")
            axes.plot(steps[width - 1 :], smooth, color="#0b5394", linewidth=1.6, label=f"mean of {width}")
        if self.evaluations:
            at = [one.global_step for one in self.evaluations]
            found = [one.loss for one in self.evaluations]
            axes.plot(at, found, color="#b45f06", marker="o", markersize=4, linewidth=1.2, label="validation")
        axes.set(xlabel="global step", ylabel="loss", title=_plain(title))
        return finished(figure, axes, path, log=len(losses) > 0 and bool(losses.min() > 0))

    def summary(self) -> str:
        """Returns the known facts of the training as a table of text, one a line."""
        facts = self._facts()
        width = max(len(name) for name, _ in facts)
        return "\n".join(f"{name:<{width}}  {printable(value)}" for name, value in facts)

    def _repr_html_(self) -> str:
        """Returns the notebook's display: the facts and the curve of the loss, without scripts."""
        steps, losses = self.history[:, 0].tolist(), self.history[:, 1].tolist()
        return html.block(
            f"training of {self.task}", html.table(self._facts()), html.curve("loss", steps, losses, log=True)
        )

    def _facts(self) -> list[tuple[str, str]]:
        """Returns the facts for `summary` and notebooks, in order."""
        losses = self.history[:, 1]
        finite = losses[np.isfinite(losses)]
        facts = [
            ("task", self.task),
            ("global step", f"{self.global_step:,} ({self.updates:,} updates of the job in this training)"),
            ("steps", f"{self.steps:,} of this task, {self.examples:,} examples"),
            ("time", f"{duration(self.seconds)} after the first step"),
            ("rate", f"{rate(self.steps_per_second)} steps/s of the job, {rate(self._examples_per_second)} examples/s"),
        ]
        if finite.size:
            best = int(np.nanargmin(np.where(np.isfinite(losses), losses, np.nan)))
            facts.append(
                (
                    "loss",
                    f"first {losses[0]:.4g}, last {losses[-1]:.4g}, "
                    f"best {losses[best]:.4g} at global step {self.history[best, 0]:,.0f}",
                )
            )
        if self.evaluations:
            facts.append(("validation", f"last {self.evaluations[-1]}"))
            lowest = min(self.evaluations, key=lambda one: one.loss if np.isfinite(one.loss) else np.inf)
            if lowest is not self.evaluations[-1]:
                facts.append(("", f"lowest {lowest}"))
        if self.spent is not None and self.spent.steps:
            names = ["each step", *[""] * len(self.spent.seconds)]
            facts += zip(names, [*table(self.spent), *advice(self.spent)], strict=False)
        if self.memory_bytes:
            parts = f": {parts_text(self.memory_parts)}" if self.memory_parts else ""
            facts.append(("memory", f"{size(self.memory_bytes)} of this task{parts}"))
        facts.append(("staleness", f"{self.mean_staleness:.2f} updates in the mean"))
        if self.refused or self.non_finite_losses:
            facts.append(("not finite", f"{self.refused:,} gradients (refused), {self.non_finite_losses:,} losses"))
        facts.append(("ended", self.stopped))
        return facts

    @property
    def _examples_per_second(self) -> float:
        """Returns the examples per second of this task, over all its steps except the first."""
        return self.examples * (1 - 1 / self.steps) / self.seconds if self.steps > 1 and self.seconds > 0 else 0.0


def _plain(text: str) -> str:
    """Escapes a text so that matplotlib draws it as it is, and not as mathematics."""
    return printable(text).replace("$", r"\$")


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
    """Returns the means over all examples of batches, each with its loss and metrics.

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
    """Converts a scalar array or number to a float."""
    return float(np.asarray(value))
