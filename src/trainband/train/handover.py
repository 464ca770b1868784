"""Handover: the changes in a session when the chief's duties move to this task, or away from it."""

from __future__ import annotations

from trainband.job.engine import Engine
from trainband.train.checkpointer import SessionCheckpoints
from trainband.train.duties import Duties
from trainband.train.hook_loop import HookLoop
from trainband.train.hooks.stop_at_step import StopAtStepHook
from trainband.train.job import Job
from trainband.train.stop import Stop
from trainband.train.tensorboard_files import EventFiles


class Handover:
    """Checks which task has the duties, after each step and at the end.

    Args:
      job: this task's part in the job.
      duties: of the session, as are all others.
      checkpoints: forget the orders of another chief.
      stop: knows where the training ends.
      hooks: decide where it is to end.
      events: those of the chief are closed when this task is no longer the chief.
    """

    def __init__(
        self,
        job: Job,
        duties: Duties,
        checkpoints: SessionCheckpoints,
        stop: Stop,
        hooks: HookLoop,
        events: EventFiles,
    ) -> None:
        self._job = job
        self._duties = duties
        self._checkpoints = checkpoints
        self._stop = stop
        self._limits = [hook for hook in hooks.hooks if isinstance(hook, StopAtStepHook)]
        self._events = events

    def poll(self, engine: Engine) -> None:
        """Checks whether this task has the chief's duties now."""
        if not self._duties.poll(engine.peers):
            return
        self._checkpoints.forget()
        self._job.trainings.learn(engine.steps.training.starts)
        self.set_limit()
        if not self._job.had_duties:
            self._events.close_chiefs()

    def set_limit(self) -> None:
        """Sets the global step at which this training is to end, from where it began."""
        began_at = self._job.trainings.began_at
        self._stop.last_step = min((hook.last_step_from(began_at) for hook in self._limits), default=None)
