"""TrainingLog: the record of one task's training."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

import numpy as np

from trainband.job.engine import Steps
from trainband.model.batch import Several, examples_in_step
from trainband.model.variables import PyTree
from trainband.runtime.step_times import Since, StepTimes
from trainband.strategies.base import StepReport
from trainband.train.result import Evaluation, FitResult


class TrainingLog:
    """A cheap record of a training run, extended after every step.

    Args:
      accumulate: batches a step.
      began_at: the global step at which this task began it.
      times: where this task's steps spend their time.
    """

    def __init__(self, accumulate: int, began_at: int, times: StepTimes) -> None:
        self._times = times
        self._since: Since | None = None
        self._accumulate = accumulate
        self._began_at = began_at
        self._steps = array("q")
        self._losses = array("d")
        self._examples = array("q")
        self._applied = 0
        self._staleness = 0
        self._first_at = 0.0
        self._in_first = 0

    def add(self, report: StepReport, batch: PyTree) -> None:
        """Records a report on a batch, or on those of a call."""
        if not self._examples:
            self._first_at, self._in_first = time.perf_counter(), report.steps
            self._since = Since(self._times, self._first_at)
        for one in (batch.batches if isinstance(batch, Several) else (batch,))[: report.steps]:
            self._examples.append(examples_in_step(one, self._accumulate))
        self._append(((report.global_step, report.loss),) if report.known is None else report.known)
        self._applied += report.applied
        self._staleness += report.staleness

    def _append(self, known: Sequence[tuple[int, float]]) -> None:
        for step, loss in known:
            self._steps.append(step)
            self._losses.append(loss)

    def result(self, stepper: Steps, task: str, stopped: str, evaluations: tuple[Evaluation, ...]) -> FitResult:
        """Returns the result of the training."""
        self._append(stepper.pop_known())
        training, statistics = stepper.training, stepper.statistics()
        seconds = time.perf_counter() - self._first_at if self._steps else 0.0
        if training.unused:
            for noted in (self._steps, self._losses, self._examples):
                del noted[-training.unused :]
        # A ps that came back from a checkpoint has lost later updates.
        steps = np.minimum.accumulate(np.array(self._steps, np.int64)[::-1])[::-1]
        return FitResult(
            task=task,
            global_step=stepper.global_step,
            updates=max(0, int(steps[-1]) - self._began_at) if len(steps) else 0,
            timed_updates=int(steps[-1] - steps[min(self._in_first, len(steps)) - 1]) if len(steps) else 0,
            steps=len(steps),
            examples=sum(self._examples),
            seconds=seconds,
            stopped=stopped,
            refused=training.refused,
            mean_staleness=self._staleness / max(1, self._applied),
            spent=None if self._since is None else self._since.spent(time.perf_counter()),
            memory_bytes=statistics.memory_bytes,
            memory_parts=statistics.memory_parts,
            history=np.stack([steps.astype(np.float64), np.array(self._losses)], axis=1),
            evaluations=evaluations,
        )
