"""ProfilerHook: where some steps spend their time."""

from __future__ import annotations

import time
from pathlib import Path

import jax

from trainband.runtime import Clock
from trainband.runtime.overrides import override
from trainband.strategies.base import StepReport
from trainband.train.hooks.base import Hook
from trainband.train.hooks.session import Session
from trainband.train.hooks.timer import Timer


class ProfilerHook(Hook):
    """Traces some steps of this worker with JAX's profiler at an interval; never the first, which compiles.

    View the traces with TensorBoard's profile plugin (xprof) or Perfetto. The chief's are in `output_dir`,
    those of another worker in a folder with its name there. A process can run only one profiler at a time.

    Args:
      save_steps: global steps from the start of one trace to that of the next.
      save_secs: seconds, instead; give exactly one.
      output_dir: where to write.
      steps: of this worker, in one trace.
      clock: seconds, monotonic.

    Raises:
      ValueError: both or neither are given, or the value is not positive.
    """

    def __init__(
        self,
        *,
        output_dir: str | Path,
        save_steps: int | None = None,
        save_secs: float | None = None,
        steps: int = 10,
        clock: Clock = time.monotonic,
    ) -> None:
        if steps < 1:
            raise ValueError(f"ProfilerHook: steps must be at least 1, got {steps}.")
        self._timer = Timer("ProfilerHook", every_steps=save_steps, every_secs=save_secs)
        self._output_dir = Path(output_dir)
        self._steps = steps
        self._clock = clock
        self._warm = False
        self._left = 0

    @override
    def begin(self, session: Session) -> None:
        del session
        self._warm = False

    @override
    def before_run(self, session: Session) -> None:
        step, now = session.global_step, self._clock()
        if not self._warm or self._left or not self._timer.due(step, now):
            return
        self._timer.record(step, now)
        directory = self._output_dir if session.is_chief else self._output_dir / session.task.replace(":", "-")
        jax.profiler.start_trace(directory)
        self._left = self._steps

    @override
    def after_run(self, session: Session, report: StepReport) -> None:
        del session
        self._warm = True
        if not self._left:
            return
        if self._left <= report.steps:
            jax.block_until_ready(report.loss)  # otherwise the trace shows only half of the last steps
            self.close()
        else:
            self._left -= report.steps

    @override
    def close(self) -> None:
        if self._left:
            self._left = 0
            jax.profiler.stop_trace()
