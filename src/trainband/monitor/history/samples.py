"""Samples: what successive states of a job add to its history."""

from __future__ import annotations

from trainband.job.reports import Progress
from trainband.monitor.history.changes import changes
from trainband.monitor.history.curves import STRETCH_FROM, Curves
from trainband.monitor.history.events import EventLog


class Samples:
    """Compares each state of a job with the previous one. Pure: the time is an argument.

    Args:
      reports_first_workers: whether the workers of the first state have just joined.
    """

    def __init__(self, curves: Curves, events: EventLog, *, reports_first_workers: bool) -> None:
        self._curves = curves
        self._events = events
        self._reports_first_workers = reports_first_workers
        self._before: Progress | None = None
        self._sampled_s = 0.0

    def add(self, progress: Progress, now: float) -> None:
        """Adds the state of the job.

        Args:
          now: monotonic seconds.
        """
        before = self._before
        if before is not None or self._reports_first_workers:
            for kind, text, value in changes(before, progress):
                self._events.add(kind, text, progress.global_step, value)
        step, add = progress.global_step, self._curves.add
        if before is not None and now > self._sampled_s:
            seconds = now - self._sampled_s
            add("steps_per_second", max(0, step - before.global_step) / seconds, step, weight=seconds)
        self._before, self._sampled_s = progress, now
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
