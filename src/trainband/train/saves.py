"""Saves: the checkpoints of one session, when they are ordered and what they say of the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainband.errors import CheckpointError, ClusterError, PeerError
from trainband.strategies.engine import Engine
from trainband.train.checkpointer import About, Checkpointer
from trainband.train.data_position import DataPosition
from trainband.train.duties import Duties
from trainband.train.job import Job
from trainband.train.stop import Stop

MORE_SAVES = 3
"""How often a checkpoint that is waited for is tried again, where ps die while it is written."""


class Saves:
    """Orders the checkpoints of one session, if this task is the chief.

    Args:
      job: this task's part in it.
      duties: who writes, on the chief.
      position: in the data, which goes into each checkpoint.
      stop: of the session.
      remake: makes the updates again that a ps has lost.
    """

    def __init__(
        self, job: Job, duties: Duties, position: DataPosition, stop: Stop, remake: Callable[[Engine], None]
    ) -> None:
        self._job = job
        self._duties = duties
        self._position = position
        self._stop = stop
        self._remake = remake
        self._ordered: tuple[int, bool] | None = None

    @property
    def checkpointer(self) -> Checkpointer | None:
        """What writes them; on the chief, where there is a directory."""
        return self._duties.checkpointer

    def forget(self) -> None:
        """What was ordered last may be of another chief, or be passed by others."""
        self._ordered = None

    def leave_state(self, engine: Engine, behind: int = 0) -> None:
        """Leaves this task's worker state for the checkpoint, as it was so many steps ago."""
        self._position.leave(engine, self._job.trainings.number, behind)

    def save(
        self,
        engine: Engine,
        *,
        at: int | None = None,
        wait: bool = False,
        metrics: Mapping[str, float] | None = None,
        best: str = "",
    ) -> None:
        """See `MonitoredSession.save`."""
        if wait and engine.in_parts and (self._stop.is_deferred or not self._stop.reason):
            raise ClusterError(
                "no worker has all the variables: a checkpoint takes the next steps of all of them, and cannot be "
                "waited for during the training. Leave wait=True out."
            )
        if self.checkpointer is None:
            raise ClusterError("a checkpoint is saved by the chief, in a session that has a checkpoint_dir.")
        if best and engine.in_parts:
            raise ClusterError(
                "no worker has all the variables: a checkpoint would be of a later step than the validation that it "
                "speaks of. Let a ValidationHook save the best, in which all take part."
            )
        about = self._order(engine, self.checkpointer, at=at, wait=wait, metrics=metrics or {}, best=best)
        if wait:
            with engine.busy("writes a checkpoint"):
                self._await(engine, self.checkpointer, about)

    def note_validation(self, engine: Engine, metrics: Mapping[str, float], best: str) -> None:
        """See `MonitoredSession.note_validation`."""

        def keep() -> None:
            if best and self.checkpointer is not None:
                self._order(engine, self.checkpointer, metrics=metrics, best=best)

        if not engine.in_parts:
            keep()
            return
        with engine.busy("writes a checkpoint"):
            gave = engine.gather(keep)
        if gave and self._position.is_saved:
            self.leave_state(engine)

    def finish(self, engine: Engine) -> None:
        """Waits for the last checkpoint.

        Raises:
          CheckpointError: it could not be written.
        """
        if self.checkpointer is not None:
            with engine.busy("writes a checkpoint"):
                self.checkpointer.finish()

    def _order(
        self,
        engine: Engine,
        checkpointer: Checkpointer,
        *,
        at: int | None = None,
        wait: bool = False,
        metrics: Mapping[str, float],
        best: str,
    ) -> About:
        trainings, stop = self._job.trainings, self._stop
        is_end = stop.is_complete or (at is not None and at == stop.last_step)
        about = About(
            strategy=self._job.strategy_name,
            trainings=trainings.starts,
            complete=trainings.is_last and is_end,
            last_step=stop.last_step,
            # More batches are known to follow those before only where it is known which those were.
            used_up=stop.is_used_up and self._position.feed is not None,
            metrics=metrics,
            best=(best, metrics[best]) if best else None,
        )
        if at is not None:
            checkpointer.order(engine, at, about)
            self._ordered = (at, about.complete)
            if at <= engine.global_step:
                self.leave_state(engine)
        elif not (wait or best or stop.done):
            checkpointer.order(engine, None, about)
            self.leave_state(engine)
        elif best or not self._has_saved(checkpointer, engine.global_step, complete=about.complete):
            checkpointer.order(engine, 0, about)
            self.leave_state(engine)
            self._ordered = (engine.global_step, about.complete)
        return about

    def _has_saved(self, checkpointer: Checkpointer, step: int, *, complete: bool) -> bool:
        """Whether the checkpoint of this step is there, as after the last validation; waits while it is written."""
        if self._ordered != (step, complete):
            return False
        checkpointer.withdraw()  # one that waits for a later step might wait for ever
        return checkpointer.saved is not None and checkpointer.saved.global_step == step

    def _await(self, engine: Engine, checkpointer: Checkpointer, about: About) -> None:
        """Waits for a checkpoint; where a ps dies over it, it is made once more with the one that comes back."""
        for _ in range(MORE_SAVES):
            try:
                checkpointer.finish()
                if not (self._stop.done and engine.missing()):
                    return
            except CheckpointError as exc:
                if not isinstance(exc.__cause__, PeerError):
                    raise
            if self._stop.done and engine.missing():  # the question waits for whoever is away
                self._remake(engine)
            checkpointer.order(engine, 0, about)
            self.leave_state(engine)
        checkpointer.finish()
