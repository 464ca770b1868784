"""TrackerHook: the chief sends configuration, metrics and files to a tracker, such as MLflow or Weights & Biases."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainband.errors import YourError
from trainband.monitor.trackers.base import Tracker
from trainband.runtime import Clock
from trainband.runtime.overrides import override
from trainband.strategies.base import StepReport
from trainband.train.hooks.base import Hook
from trainband.train.hooks.session import TrackedSession
from trainband.train.hooks.timer import Timer, every
from trainband.train.result import as_float
from trainband.version import VERSION


class TrackerHook(Hook):
    """Reports the chief's training to a tracker: one run from the session's beginning to its end.

    ::

        from trainband.monitor.trackers import MLflowTracker

        hook = trainband.TrackerHook(MLflowTracker("digits"), config={"learning_rate": 0.01})
        trainer.fit(batches, 10_000, hooks=[hook])

    It logs `loss` (the mean over this worker's steps since the point before), the metrics of the last batch,
    `steps_per_second` of the whole job, and after each validation `validation/loss` and its metrics. A worker that
    takes over the chief's duties begins its own run.

    A tracker that fails does not stop the training: a warning is printed once, and the tracker gets nothing more.

    Args:
      tracker: see `trainband.monitor.trackers`.
      config: the run's configuration; strategy, task, and version are added.
      every_steps: global steps between two points; 100 by default.
      every_secs: seconds between two, instead.
      artifacts: files and directories that the tracker is to keep after a successful training. Missing ones are
        reported.
      clock: seconds, monotonic.

    Raises:
      ValueError: both are given, or the value is not positive.
      YourError: `tracker` is not a tracker.
    """

    def __init__(
        self,
        tracker: Tracker,
        *,
        config: Mapping[str, object] | None = None,
        every_steps: int | None = None,
        every_secs: float | None = None,
        artifacts: Sequence[str | Path] = (),
        clock: Clock = time.monotonic,
    ) -> None:
        names = ("start", "log", "add_artifact", "finish")
        if isinstance(tracker, type) or not all(callable(getattr(tracker, name, None)) for name in names):
            raise YourError(f"TrackerHook: tracker must be a tracker, such as MLflowTracker(), got {tracker!r}.")
        self._tracker = tracker
        self._config = dict(config or {})
        self._timer = Timer("TrackerHook", every_steps=every(every_steps, every_secs), every_secs=every_secs)
        self._artifacts = [Path(path) for path in ([artifacts] if isinstance(artifacts, str | Path) else artifacts)]
        self._clock = clock
        self._is_open = False
        self._has_failed = False
        self._has_ended = False
        self._say: Callable[[str], None] = lambda _: None
        self._sum, self._count = 0.0, 0
        self._since: tuple[int, float] | None = None
        self._validation: object = None

    @override
    def begin(self, session: TrackedSession) -> None:
        self._say = session.say
        self._has_ended = self._has_failed = False
        self._since = None
        self._sum, self._count = 0.0, 0
        self._validation = session.validation
        if session.is_chief:
            self._start(session)

    @override
    def after_run(self, session: TrackedSession, report: StepReport) -> None:
        if not session.is_chief or self._has_failed:
            return
        if not self._is_open:
            self._start(session)
        self._add(report)
        now = self._clock()
        if report.steps and self._timer.due(report.global_step, now):
            self._timer.record(report.global_step, now)
            self._log(self._point(report, now), report.global_step)
        self._log_validation(session)

    @override
    def end(self, session: TrackedSession) -> None:
        self._has_ended = True
        if not self._is_open or not session.is_chief:
            return
        self._log_validation(session)
        for path in self._artifacts:
            if path.exists():
                self._try("keep a file", partial(self._tracker.add_artifact, path))
            else:
                session.say(f"WARNING: TrackerHook: the artifact {path} does not exist")

    @override
    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            failed = not self._has_ended
            self._try("end its run", partial(self._tracker.finish, failed=failed))

    def _start(self, session: TrackedSession) -> None:
        about = {
            "trainband": VERSION,
            "strategy": session.strategy_name,
            "task": session.task,
            "began_at_global_step": session.global_step,
        }
        self._tracker.start({**about, **self._config})
        self._is_open = True

    def _add(self, report: StepReport) -> None:
        known = report.known
        if known is None:
            known = ((report.global_step, report.loss),) if isinstance(report.loss, float) else ()
        for _, loss in known:
            if math.isfinite(loss):
                self._sum += loss
                self._count += 1

    def _point(self, report: StepReport, now: float) -> dict[str, float]:
        loss = self._sum / self._count if self._count else as_float(report.loss)
        self._sum, self._count = 0.0, 0
        values = {"loss": loss}
        values |= {name: as_float(metric) for name, metric in report.metrics.items() if name != "loss"}
        if self._since is not None and now > self._since[1]:
            values["steps_per_second"] = (report.global_step - self._since[0]) / (now - self._since[1])
        self._since = report.global_step, now
        return values

    def _log_validation(self, session: TrackedSession) -> None:
        found = session.validation
        if found is None or found is self._validation:
            return
        self._validation = found
        self._log({f"validation/{name}": float(value) for name, value in found[1].items()}, found[0])

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self._try("take metrics", partial(self._tracker.log, values, step))

    def _try(self, what: str, call: Callable[[], Any]) -> None:
        """Calls the tracker, unless it has failed before."""
        if self._has_failed:
            return
        try:
            call()
        except Exception as exc:  # a failing tracker must not end the training
            self._has_failed = True
            self._say(
                f"WARNING: {type(self._tracker).__name__} could not {what}; training continues without it. "
                f"{type(exc).__name__}: {exc}"
            )
