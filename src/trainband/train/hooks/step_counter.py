"""StepCounterHook: the speed of the job."""

from __future__ import annotations

import time
from pathlib import Path

from trainband.runtime import Clock
from trainband.runtime.overrides import override
from trainband.strategies.base import StepReport
from trainband.train.hooks.base import Hook
from trainband.train.hooks.session import Session
from trainband.train.hooks.timer import Timer, every


class StepCounterHook(Hook):
    """Prints the job's global steps and examples per second; on the chief only.

    The first step, which compiles everything, does not count. If there is a directory, the figures also go to
    TensorBoard, as `global_step/sec` and `examples/sec`.

    Args:
      every_steps: global steps between two measurements; 100 by default.
      every_secs: seconds, instead.
      output_dir: for TensorBoard; by default the session's `checkpoint_dir`.
      clock: seconds, monotonic.

    Raises:
      ValueError: both are given, or the value is not positive.
    """

    def __init__(
        self,
        *,
        every_steps: int | None = None,
        every_secs: float | None = None,
        output_dir: str | Path | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        steps = every(every_steps, every_secs)
        self._timer = Timer("StepCounterHook", every_steps=steps, every_secs=every_secs)
        self._output_dir = output_dir
        self._clock = clock
        self._since: tuple[int, float] | None = None

    @override
    def begin(self, session: Session) -> None:
        del session
        self._since = None  # between two sessions it is idle

    @override
    def after_run(self, session: Session, report: StepReport) -> None:
        step, now = report.global_step, self._clock()
        if not session.is_chief:
            self._since = None
            return
        if self._since is None:
            self._start_counting(step, now)
            return
        before, then = self._since
        if not self._timer.due(step, now) or now <= then:
            return
        self._start_counting(step, now)
        figures = {"global_step/sec": (step - before) / (now - then)}
        progress = session.progress()
        if progress is not None and progress.examples_rate:
            figures["examples/sec"] = progress.examples_rate
        said = ", ".join(f"{value:,.1f} {name}" for name, value in figures.items())
        session.say(f"global step {step:,}: {said}")
        if self._output_dir is not None or session.checkpoint_dir is not None:
            session.events(self._output_dir).add(step, figures)

    def _start_counting(self, step: int, now: float) -> None:
        self._timer.record(step, now)
        self._since = step, now
