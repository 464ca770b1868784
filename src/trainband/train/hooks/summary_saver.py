"""SummarySaverHook: the training's curves, for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainband.runtime import Clock
from trainband.runtime.overrides import override
from trainband.strategies.base import StepReport
from trainband.train.hooks.base import Hook
from trainband.train.hooks.session import Session
from trainband.train.hooks.timer import Timer, every

Summaries = Callable[[Any], Mapping[str, Any]]
"""From a `MonitoredSession` to further values, numbers and arrays by name."""


class SummarySaverHook(Hook):
    """Writes loss and metrics of the chief's batch to TensorBoard's event files; on the chief only.

    A run that resumes from a checkpoint writes to the same directory, and its curves have no second branch.

    Args:
      save_steps: global steps between two points of a curve; 100 by default.
      save_secs: seconds between two, instead.
      output_dir: where to write; by default the session's `checkpoint_dir`.
      summaries: `summaries(session) -> {name: value}`, called each time: numbers and scalar arrays become curves,
        other arrays histograms, such as those of `session.params()`.
      clock: seconds, monotonic.

    Raises:
      ValueError: both are given, or the value is not positive.
      YourError: when its session begins: there is no directory to write to.
    """

    def __init__(
        self,
        *,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | Path | None = None,
        summaries: Summaries | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        steps = every(save_steps, save_secs)
        self._timer = Timer("SummarySaverHook", every_steps=steps, every_secs=save_secs)
        self._output_dir = output_dir
        self._summaries = summaries
        self._clock = clock

    @override
    def begin(self, session: Session) -> None:
        if session.is_chief:
            session.events(self._output_dir)

    @override
    def after_run(self, session: Session, report: StepReport) -> None:
        now = self._clock()
        if not report.steps or not session.is_chief or not self._timer.due(report.global_step, now):
            return
        if self._output_dir is None and session.checkpoint_dir is None:
            return  # it has become the chief; the first chief had a directory
        self._timer.record(report.global_step, now)
        values = {"loss": report.loss, **report.metrics}
        if self._summaries is not None:
            values |= self._summaries(session)
        session.events(self._output_dir).add(report.global_step, values)
