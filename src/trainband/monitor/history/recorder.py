"""Recorder: writes the history of a training, from a thread of its own, while the training goes on."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainband.monitor.history.changes import changes
from trainband.monitor.history.curves import STRETCH_FROM, Curves, spacing
from trainband.monitor.history.file import HistoryFile
from trainband.monitor.history.read import newest_start
from trainband.monitor.history.schema import EVENT, FOLDER, Row, next_start
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.waiting import Say, Waiting
from trainband.spmd.report import Progress, StepReport
from trainband.version import VERSION

LOOK_S = 1.0
"""Between two looks at the job, while its run is young."""

SELDOM_S = 5.0
"""And when it is old."""

MOST_LOSSES = 100_000
"""That wait for the next look: where writing takes long, the oldest of them are dropped."""

MOST_EVENTS = 20_000
"""In one file. What comes after them is counted, and only the end is written."""

MOST_SERIES = 5_000
"""In one file, for names that are made up as the training goes."""

_POLL_S = 0.05
_CLOSE_S = 60.0


class Recorder:
    """Keeps the history of one training: on the chief, from when it has the duties until it gives them up.

    What the training gives it (`note`, `note_values`, `event`) is only put aside, which takes less than a microsecond
    for a step. The thread makes means and rows of that, asks the job how it is, and writes. A disk that refuses stops
    no training: that is said once, and the history ends there.

    Args:
      directory: of the checkpoints.
      source: how the job is; `None` when that cannot be told just now. Called from the thread.
      say: where lines for people go.
      task: who writes.
      job: which job: random, the same for all its tasks.
      global_step: where the training is.
      resumed: whether it resumes from a checkpoint of this directory.
      began: what the first event is, and its text: `start` for a process that begins or resumes a training, `chief`
        for one that has been given the chief's duties.
      ends_at: the global step at which the training is to end, which stands with that event; `None` without a limit.
      resumes_at: the global step of the checkpoint that the job has just been restored from, if it has.
      strategy: how the job trains.
      runtime: this task's.
      wall: seconds since 1970.
    """

    def __init__(
        self,
        directory: Path,
        source: Callable[[], Progress | None],
        say: Say,
        *,
        task: str,
        job: str,
        global_step: int,
        resumed: bool,
        began: tuple[str, str] = ("start", ""),
        ends_at: int | None = None,
        resumes_at: int | None = None,
        strategy: str = "",
        runtime: Runtime = SYSTEM,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._folder = directory / FOLDER
        self._source = source
        self._say = say
        self._runtime = runtime
        self._wall = wall
        self._about: dict[str, Any] = {
            "token": runtime.token(),
            "job": job,
            "task": task,
            "global_step": global_step,
            "resumed": resumed,
            "strategy": strategy,
            "trainband": VERSION,
        }
        self._file: HistoryFile | None = None
        self._curves = Curves(MOST_SERIES)
        self._losses: deque[tuple[int, Any]] = deque(maxlen=MOST_LOSSES)
        self._values: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=1_000)
        self._events: deque[Row] = deque(maxlen=1_000)
        self._end: list[Row] = []
        self._written_events = 0
        self._report: StepReport | None = None
        self._unread: StepReport | None = None
        self._read: StepReport | None = None
        self._refused = 0
        self._refusal = ""
        self._told_refused = 0
        self._told_s = -math.inf
        self._non_finite = 0
        self._sum, self._count, self._others = 0.0, 0, 0
        """Of the losses since the last look: of the finite ones, how many those are, and how many others."""
        self._step = global_step
        self._seen: Progress | None = None
        self._looked_at: tuple[float, int] | None = None
        self._age_at_start = 0.0
        self._started_s = runtime.clock()
        self._stop = runtime.event()
        self._is_over = False
        self.event(began[0], began[1], value=None if ends_at is None else float(ends_at), global_step=global_step)
        if resumes_at is not None:
            self.event("restore", f"the job continues from global step {resumes_at:,}", global_step=resumes_at)
        # Whoever is there when a job begins has just joined it.
        self._tells_who_is_there = global_step == 0 or resumes_at is not None
        self._thread = runtime.thread(self._run, "trainband-history")
        self._thread.start()

    # --- what the training gives

    def note(self, report: StepReport) -> None:
        """Notes a step's report. Costs the training less than a microsecond, and waits for no device."""
        self._report = report
        if report.known is None:
            if report.steps:
                self._losses.append((report.global_step, report.loss))
        elif report.known:
            self._losses.extend(report.known)
        if report.refusal:
            self._refusal = report.refusal
            self._refused += 1

    def note_values(self, values: Mapping[str, Any], global_step: int) -> None:
        """Notes values of other series by their names. May be called from any thread."""
        self._values.append((global_step, dict(values)))

    def event(self, kind: str, text: str, *, value: float | None = None, global_step: int | None = None) -> None:
        """Notes something that has happened. May be called from any thread."""
        step = self._step if global_step is None else global_step
        self._events.append(Row(self._wall(), step, EVENT + kind, value, text))

    def close(self, reason: str | None = None) -> None:
        """Writes what is left, and the end of the training where a reason for it is given. Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        if reason is not None:
            step = self._step if self._report is None else max(self._step, self._report.global_step)
            self._end = [Row(self._wall(), step, EVENT + "end", None, reason)]
        self._stop.set()
        waiting = Waiting(_CLOSE_S, self._say, self._runtime.clock)
        while self._thread.is_alive():
            self._thread.join(_POLL_S)
            if self._thread.is_alive() and waiting.waited_s > _CLOSE_S:
                self._say(f"WARNING: {self._folder} does not take the end of the history, which is left out.")
                return
            waiting.check(f"the history to be written into {self._folder}", "")

    # --- the thread

    def _run(self) -> None:
        try:
            self._open()
            while not self._stop.wait(self._pause()):
                self._look()
            self._write(everything=True)
        except OSError as exc:
            self._say(
                f"WARNING: no history can be written into {self._folder} ({exc.strerror or exc}); the training goes on "
                "without. Free space, or give this user the right to write there, and start again."
            )
        finally:
            if self._file is not None:
                self._close_file(self._file)

    def _close_file(self, file: HistoryFile) -> None:
        try:
            file.close()
        except OSError as exc:  # what it has said before
            self._say(f"{file.path} could not be closed: {exc.strerror or exc}")

    def _open(self) -> None:
        start = next_start(newest_start(self._folder), now=self._wall(), **self._about)
        self._age_at_start = max(0.0, start.started_at - start.run_began_at)
        self._file = HistoryFile(self._folder, start)
        self._write()

    def _age(self) -> float:
        return self._age_at_start + self._runtime.clock() - self._started_s

    def _pause(self) -> float:
        # A little longer than the spacing, which grows meanwhile.
        return min(max(LOOK_S, 1.001 * spacing(self._age())), SELDOM_S)

    def _look(self) -> None:
        """Looks at the job, and writes the points that are due."""
        progress = self._source()
        now = self._runtime.clock()
        if progress is not None and not self._stop.is_set():
            told = changes(self._seen, progress) if self._seen is not None or self._tells_who_is_there else ()
            for kind, text, value in told:
                self.event(kind, text, value=value, global_step=progress.global_step)
            self._seen = progress
            self._add_progress(progress, now)
        self._write()

    def _add_progress(self, progress: Progress, now: float) -> None:
        step, add = progress.global_step, self._curves.add
        if self._looked_at is not None and now > self._looked_at[0]:
            seconds = now - self._looked_at[0]
            made = max(0, step - self._looked_at[1])
            add("steps_per_second", made / seconds, step, weight=seconds)
        self._looked_at = now, step
        if progress.examples_rate:
            add("examples_per_second", progress.examples_rate, step)
        if progress.learning_rate is not None:
            add("learning_rate", progress.learning_rate, step)
        if len(progress.workers) < 2:
            for row in progress.workers:
                if row.memory_bytes:
                    add("memory_bytes", row.memory_bytes, step)
                if row.device_memory_bytes:
                    add("device_memory_bytes", row.device_memory_bytes, step)
            return
        stretch = max(1.0, len(progress.workers) / STRETCH_FROM)
        for row in progress.workers:
            if row.presence != "live":
                continue
            add(f"{row.task}/steps_per_second", row.rate, step, stretch=stretch)
            add(f"{row.task}/staleness", row.staleness, step, stretch=stretch)
            if row.loss is not None:
                add(f"{row.task}/loss", row.loss, step, stretch=stretch)
            if row.memory_bytes:
                add(f"{row.task}/memory_bytes", row.memory_bytes, step, stretch=stretch)

    def _write(self, *, everything: bool = False) -> None:
        """Writes what is due; everything, at the end."""
        assert self._file is not None
        age = self._age()
        for _ in range(len(self._losses)):
            self._add_loss(*self._losses.popleft(), age)
        self._end_losses()
        self._add_metrics()
        for _ in range(len(self._values)):
            step, values = self._values.popleft()
            for name, value in values.items():
                self._add_value(name, value, step)
        self._tell_refusals(age, everything=everything)
        points = self._points(age, everything=everything)
        self._file.append([*self._told_events(), *points, *(self._end if everything else ())])

    def _points(self, age: float, *, everything: bool = False) -> list[Row]:
        now = self._wall()
        return [Row(now, step, name, value) for name, step, value in self._curves.take(age, everything=everything)]

    def _add_loss(self, step: int, loss: Any, age: float) -> None:
        """Counts the loss of a step; where that is not after the one before, a ps has lost what was made since."""
        if step < self._step:
            self._end_losses()
            assert self._file is not None
            self._file.append([*self._told_events(), *self._points(age, everything=True)])
            self.event("restore", f"the job continues from global step {step - 1:,}", global_step=step - 1)
        self._step = step
        value = loss if isinstance(loss, float) else _number(loss)
        if value is None:
            return
        if math.isfinite(value):
            self._sum += value
            self._count += 1
        else:
            self._others += 1

    def _end_losses(self) -> None:
        self._curves.add_sum("loss", self._sum, self._count, self._others, self._step)
        self._non_finite += self._others
        self._sum, self._count, self._others = 0.0, 0, 0

    def _add_metrics(self) -> None:
        """Counts the metrics of the newest step that is computed: one of those since the last look."""
        self._unread = self._unread or self._report
        if self._unread is None or not all(_is_there(value) for value in self._unread.metrics.values()):
            return  # it is looked at again: reading it now would wait for the device
        report, self._unread = self._unread, None
        if report is not self._read:
            self._read = report
            for name, value in report.metrics.items():
                if name != "loss":
                    self._add_value(name, value, report.global_step)

    def _add_value(self, name: str, value: Any, step: int) -> None:
        """Counts a value, if it is one number: a front end's outputs may be of any shape, or dicts of more."""
        name = str(name)
        is_number = isinstance(value, int | float) or getattr(value, "size", 0) == 1
        if is_number and str(getattr(value, "dtype", "")) != "object":
            number = _number(value)
            if number is not None:
                self._curves.add(f"metric/{name}" if name.startswith(EVENT) else name, number, step)

    def _tell_refusals(self, age: float, *, everything: bool) -> None:
        """Tells of refused gradients and of losses that are no numbers, as often as a series has points."""
        if not everything and age - self._told_s < spacing(age):
            return
        self._told_s = age
        if more := self._refused - self._told_refused:
            self._told_refused += more
            self.event("refusal", self._refusal, value=float(more))
        if self._non_finite:
            self.event("non_finite_loss", "losses were NaN or infinite", value=float(self._non_finite))
            self._non_finite = 0

    def _told_events(self) -> list[Row]:
        """The events that are to be written now; those that are too many are left out."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        room = max(0, MOST_EVENTS - self._written_events)
        self._written_events += len(events)
        if len(events) > room > 0:
            text = f"the events after the first {MOST_EVENTS:,} of this file are left out"
            events[room - 1] = Row(self._wall(), self._step, EVENT + "limit", None, text)
        return events[:room]


def _number(value: Any) -> float | None:
    """A value as a number; `None` where computing it has failed, which the thread that trains finds out and tells."""
    try:
        return float(np.asarray(value).reshape(()))
    except RuntimeError:  # as JAX's own are
        return None


def _is_there(value: Any) -> bool:
    """Whether a value can be read without waiting for a device, or for another process."""
    is_ready = getattr(value, "is_ready", None)
    return is_ready is None or bool(is_ready() and value.is_fully_replicated)
