"""LoggingHook: a regular line about the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from trainband.runtime import Clock
from trainband.runtime.overrides import override
from trainband.strategies.base import StepReport
from trainband.train.hooks.base import Hook
from trainband.train.hooks.session import Session
from trainband.train.hooks.timer import Timer, every
from trainband.train.result import as_float

Formatter = Callable[[Mapping[str, float]], str]
"""Formats `global_step`, `loss` and the metrics, by name, as a line."""


class LoggingHook(Hook):
    """Prints the global step, loss and metrics of this worker's batch; TensorFlow's LoggingTensorHook.

    Every worker that has one prints; one that is not the chief starts the line with its name.

    Args:
      every_steps: global steps between two lines; 100 by default.
      every_secs: seconds between two, instead.
      formatter: formats `{"global_step": ..., "loss": ..., metric: ...}` as a line.
      clock: seconds, monotonic.

    Raises:
      ValueError: both are given, or the value is not positive.
    """

    def __init__(
        self,
        *,
        every_steps: int | None = None,
        every_secs: float | None = None,
        formatter: Formatter | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        steps = every(every_steps, every_secs)
        self._timer = Timer("LoggingHook", every_steps=steps, every_secs=every_secs)
        self._formatter = formatter or in_words
        self._clock = clock

    @override
    def after_run(self, session: Session, report: StepReport) -> None:
        now = self._clock()
        if not report.steps or not self._timer.due(report.global_step, now):
            return
        self._timer.record(report.global_step, now)
        values = {"global_step": report.global_step, "loss": as_float(report.loss)}
        values |= {name: as_float(metric) for name, metric in report.metrics.items()}
        speaker = "" if session.is_chief else f"{session.task}: "
        session.say(speaker + self._formatter(values))


def in_words(values: Mapping[str, float]) -> str:
    """Formats values as `global step 1,200, loss 0.1234, accuracy 0.9500`."""
    figures = [f"{name} {value:.4f}" for name, value in values.items() if name != "global_step"]
    return ", ".join([f"global step {values['global_step']:,}", *figures])
