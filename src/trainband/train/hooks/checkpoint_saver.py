"""CheckpointSaverHook: regular checkpoints, and one at the end."""

from __future__ import annotations

import time

from trainband.runtime import Clock
from trainband.runtime.overrides import override
from trainband.strategies.base import StepReport
from trainband.train.hooks.base import Hook
from trainband.train.hooks.session import SavingSession
from trainband.train.hooks.timer import Timer

WAITING_SECS = 600.0
"""Between two checkpoints of a hook that counts steps, while the chief makes none."""


class CheckpointSaverHook(Hook):
    """Saves at an interval of steps or seconds, and at the end. A session with a `checkpoint_dir` adds one itself.

    By steps, checkpoints are of the multiples of `save_steps`, on every ps: each is told ahead at which version to
    save (and saves at once if many fast workers have passed it by then). While one is being written, no other begins.
    By seconds, a worker that becomes the chief saves at once if the interval has passed since its start.

    Args:
      save_secs: seconds between two checkpoints.
      save_steps: global steps between two; give exactly one.
      clock: seconds, monotonic.

    Raises:
      ValueError: both or neither are given, or the value is not positive.
    """

    def __init__(
        self, *, save_secs: float | None = None, save_steps: int | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._timer = Timer("CheckpointSaverHook", every_steps=save_steps, every_secs=save_secs)
        self._save_steps = save_steps
        self._save_secs = save_secs
        self._waited_since: float | None = None
        self._refused_at = -1
        self._clock = clock

    @override
    def begin(self, session: SavingSession) -> None:
        self._timer.record(session.global_step, self._clock())
        self._order(session)

    @override
    def after_run(self, session: SavingSession, report: StepReport) -> None:
        if session.saving or not session.is_chief:
            return
        if self._save_steps is not None:
            self._order(session)
        elif self._timer.due(report.global_step, self._clock()):
            self._timer.record(report.global_step, self._clock())
            session.save()

    def while_waiting(self, session: SavingSession) -> None:
        """Saves regularly while the chief makes no steps but others do; by seconds, as it counts no steps then."""
        now = self._clock()
        if self._waited_since is None:
            self._waited_since = now
        if not session.saving and now - self._waited_since >= (self._save_secs or WAITING_SECS):
            self._waited_since = now
            session.save()

    @override
    def end(self, session: SavingSession) -> None:
        if session.is_chief:
            session.save(wait=True)

    def _order(self, session: SavingSession) -> None:
        """Orders the next multiple; a refused order is repeated at that multiple."""
        if self._save_steps is None or not session.is_chief:
            return
        at = (session.global_step // self._save_steps + 1) * self._save_steps
        if at != self._refused_at:
            session.save(at=at)
            self._refused_at = -1 if session.saving else at
