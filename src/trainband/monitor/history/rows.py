"""HistoryRows: turns the reports of a training run and the states of its job into the rows of its history."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainband.job.reports import Progress, StepReport
from trainband.monitor.history.curves import Curves, spacing
from trainband.monitor.history.events import EventLog
from trainband.monitor.history.samples import Samples
from trainband.monitor.history.schema import EVENT, Row

MOST_LOSSES = 100_000
"""Losses kept until the next look; if writing is slow, the oldest are dropped."""

MOST_SERIES = 5_000
"""Series in one file, for names that are made up during the training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStart:
    """State of a task that starts writing a history.

    Attributes:
      task: the writer.
      job: random id, the same for all tasks of a job.
      global_step: of the training.
      resumed: whether it resumes from a checkpoint of this directory.
      began: kind and text of the first event: `start` for a process that begins or resumes a training run, `chief` for
        one that has taken over the chief's duties.
      ends_at: the global step at which the training ends, recorded with that event; `None` without a limit.
      resumes_at: the global step of the checkpoint that the job was just restored from, if any.
      strategy: how the job trains.
    """

    task: str
    job: str
    global_step: int
    resumed: bool
    began: tuple[str, str] = ("start", "")
    ends_at: int | None = None
    resumes_at: int | None = None
    strategy: str = ""


class HistoryRows:
    """Collects reports between two samples, and makes means over intervals and events of them.

    `record_step`, `record_values` and `event` only store their arguments, which takes less than a microsecond per step.
    Pure except for the times in rows: the age of the run is an argument.

    Args:
      wall: seconds since 1970.
    """

    def __init__(self, start: TrainingStart, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._events = EventLog(wall)
        self._curves = Curves(MOST_SERIES)
        # Workers that are present when a job begins have just joined it.
        is_new = start.global_step == 0 or start.resumes_at is not None
        self._samples = Samples(self._curves, self._events, reports_first_workers=is_new)
        self._losses: deque[tuple[int, Any]] = deque(maxlen=MOST_LOSSES)
        self._values: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=1_000)
        self._sum, self._count, self._others = 0.0, 0, 0
        """Losses since the last look: the sum and number of the finite ones, and the number of others."""
        self._non_finite = 0
        self._refused = 0
        self._refusal = ""
        self._reported_refused = 0
        self._reported_s = -math.inf
        self._report: StepReport | None = None
        self._unread: StepReport | None = None
        self._read: StepReport | None = None
        self._step = start.global_step
        kind, text = start.began
        self.event(kind, text, value=None if start.ends_at is None else float(start.ends_at))
        if start.resumes_at is not None:
            self._restored(start.resumes_at)

    def record_step(self, report: StepReport) -> None:
        """Stores a step's report. Takes less than a microsecond, and waits for no device."""
        self._report = report
        if report.known is None:
            if report.steps:
                self._losses.append((report.global_step, report.loss))
        elif report.known:
            self._losses.extend(report.known)
        if report.refusal:
            self._refusal = report.refusal
            self._refused += 1

    def record_values(self, values: Mapping[str, Any], global_step: int) -> None:
        """Stores values of other series by name. Thread-safe."""
        self._values.append((global_step, dict(values)))

    def event(self, kind: str, text: str, *, value: float | None = None, global_step: int | None = None) -> None:
        """Stores an event that has just happened. Thread-safe."""
        self._events.add(kind, text, self._step if global_step is None else global_step, value)

    def add_sample(self, progress: Progress, now: float) -> None:
        """Adds the state of the job at a time, in monotonic seconds."""
        self._samples.add(progress, now)

    def pop_due(self, age_s: float) -> list[Row]:
        """Returns the rows that are due.

        Args:
          age_s: of the run, in seconds.
        """
        return self._popped(age_s, everything=False)

    def end(self, age_s: float, reason: str | None) -> list[Row]:
        """Returns all remaining rows, and the end of the training if a reason is given."""
        step = self._step if self._report is None else max(self._step, self._report.global_step)
        end = [] if reason is None else [Row(self._wall(), step, EVENT + "end", None, reason)]
        return [*self._popped(age_s, everything=True), *end]

    def _popped(self, age_s: float, *, everything: bool) -> list[Row]:
        before: list[Row] = []
        for _ in range(len(self._losses)):
            before += self._add_loss(*self._losses.popleft(), age_s)
        self._end_losses()
        self._add_metrics()
        for _ in range(len(self._values)):
            step, values = self._values.popleft()
            for name, value in values.items():
                self._add_value(name, value, step)
        self._report_refusals(age_s, everything=everything)
        return [*before, *self._due(age_s, everything=everything)]

    def _due(self, age_s: float, *, everything: bool) -> list[Row]:
        now = self._wall()
        points = [Row(now, step, name, value) for name, step, value in self._curves.pop(age_s, everything=everything)]
        return [*self._events.pop(self._step), *points]

    def _restored(self, step: int) -> None:
        self.event("restore", f"the job continues from global step {step:,}", global_step=step)

    def _add_loss(self, step: int, loss: Any, age_s: float) -> list[Row]:
        """Counts the loss of a step; returns the rows before it if a ps has lost the steps made since."""
        rows: list[Row] = []
        if step < self._step:
            self._end_losses()
            rows = self._due(age_s, everything=True)
            self._restored(step - 1)
        self._step = step
        value = loss if isinstance(loss, float) else _number(loss)
        if value is None:
            return rows
        if math.isfinite(value):
            self._sum += value
            self._count += 1
        else:
            self._others += 1
        return rows

    def _end_losses(self) -> None:
        self._curves.add_sum("loss", self._sum, self._count, self._others, self._step)
        self._non_finite += self._others
        self._sum, self._count, self._others = 0.0, 0, 0

    def _add_metrics(self) -> None:
        """Counts the metrics of the newest computed step, one of those since the last look."""
        self._unread = self._unread or self._report
        if self._unread is None or not all(_is_there(value) for value in self._unread.metrics.values()):
            return  # tried again later: reading it now would wait for the device
        report, self._unread = self._unread, None
        if report is not self._read:
            self._read = report
            for name, value in report.metrics.items():
                if name != "loss":
                    self._add_value(name, value, report.global_step)

    def _add_value(self, name: str, value: Any, step: int) -> None:
        """Counts a value if it is a single number: a front end's outputs may have any shape, or be dicts."""
        name = str(name)
        is_number = isinstance(value, int | float) or getattr(value, "size", 0) == 1
        if is_number and str(getattr(value, "dtype", "")) != "object":
            number = _number(value)
            if number is not None:
                self._curves.add(f"metric/{name}" if name.startswith(EVENT) else name, number, step)

    def _report_refusals(self, age_s: float, *, everything: bool) -> None:
        """Reports refused gradients and non-finite losses, as often as a series has points."""
        if not everything and age_s - self._reported_s < spacing(age_s):
            return
        self._reported_s = age_s
        if more := self._refused - self._reported_refused:
            self._reported_refused += more
            self.event("refusal", self._refusal, value=float(more))
        if self._non_finite:
            self.event("non_finite_loss", "losses were NaN or infinite", value=float(self._non_finite))
            self._non_finite = 0


def _number(value: Any) -> float | None:
    """Returns a value as a number; `None` if computing it failed, which the training thread reports."""
    try:
        return float(np.asarray(value).reshape(()))
    except RuntimeError:  # as JAX's errors are
        return None


def _is_there(value: Any) -> bool:
    """Whether a value can be read without waiting for a device, or for another process."""
    is_ready = getattr(value, "is_ready", None)
    return is_ready is None or bool(is_ready() and value.is_fully_replicated)
