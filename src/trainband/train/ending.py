"""Ending: the actions of a job's tasks at the end of a session, together or one by one."""

from __future__ import annotations

from typing import NoReturn

from trainband.checkpoint import Checkpoint, CheckpointDirectory
from trainband.errors import CheckpointError, PeerError
from trainband.job.engine import Engine
from trainband.runtime.signals import EXIT_CODES, end_for, request_to_end
from trainband.runtime.waiting import Waiting
from trainband.train.checkpointer import SessionCheckpoints
from trainband.train.handover import Handover
from trainband.train.hook_loop import HookLoop
from trainband.train.hooks.checkpoint_saver import CheckpointSaverHook
from trainband.train.hooks.session import EndingSession
from trainband.train.job import Job
from trainband.train.lost_updates import LostUpdates
from trainband.train.stop import Stop

AT_WORK_S = 0.2
"""Between two checks whether others still train."""


class Ending:
    """The end of one session: the last checkpoint, the hooks, and waiting for others.

    Args:
      job: this task's part in the job.
      directory: the checkpoints, if any.
      hooks: of the session.
      stop: of the session.
      checkpoints: of the session.
      lost: repeats updates that a ps has lost.
      handover: checks whether this task has the chief's duties now.
    """

    def __init__(
        self,
        job: Job,
        directory: CheckpointDirectory | None,
        hooks: HookLoop,
        stop: Stop,
        checkpoints: SessionCheckpoints,
        lost: LostUpdates,
        handover: Handover,
    ) -> None:
        self._job = job
        self._directory = directory
        self._hooks = hooks
        self._savers = [hook for hook in hooks.hooks if isinstance(hook, CheckpointSaverHook)]
        self._stop = stop
        self._checkpoints = checkpoints
        self._lost = lost
        self._handover = handover
        self.has_begun = False
        """Whether the session is ending."""

    def run(self, engine: Engine, session: EndingSession) -> None:
        """Ends the session normally.

        Raises:
          CheckpointError: the last checkpoint could not be written, or updates are lost.
          SystemExit: a signal has asked this task to end, and it leaves while the others continue.
        """
        self.has_begun = True
        stop = self._stop
        stop.finish_if_deferred(engine)
        if self._job.had_duties or (engine.peers.is_chief and not self._is_saved(engine)):
            self._handover.poll(engine)
        if self._job.had_duties and stop.done:
            self._lost.make(engine, session.run)
        if self._directory is not None:
            self._checkpoints.store_worker_state(engine)
        if not stop.done:
            self._pause(engine, session)
        # If the values are in parts, all tasks act together, but only the chief starts what saving takes.
        try:
            self._hooks.end(session, last=self._savers if engine.values.in_parts else ())
        except CheckpointError:
            engine.checkpoints.end()  # the others wait for further requests for their parts
            raise
        engine.checkpoints.end()
        self._checkpoints.finish(engine.peers)

    def leave(self) -> NoReturn:
        """Leaves the job because a signal has asked this task to end.

        Raises:
          SystemExit: always, with the exit code that a shell gives a program ended by this signal.
        """
        self._job.close()
        end_for(self._stop.request)

    def leave_anyway(self, engine: Engine | None, exc: BaseException) -> None:
        """Leaves even if others fail, if this task was asked to leave: they may be leaving, too.

        Raises:
          SystemExit: as `leave`, if this is such a task and such a failure.
        """
        if engine is not None and self._stop.request and isinstance(exc, PeerError):
            self._job.say(f"{engine.peers.task}: {self._stop.request}; it leaves during a step: {exc}")
            raise SystemExit(EXIT_CODES[self._stop.request]) from exc

    def _pause(self, engine: Engine, session: EndingSession) -> None:
        """Ends this task's part in a training run that others continue."""
        steps = engine.steps
        expected = steps.global_step
        reason = steps.pause(self._stop.reason)
        if self._directory is not None and (steps.training.unused or steps.global_step < expected):
            self._checkpoints.store_worker_state(engine)  # by now its last steps are known
        # If the values are in parts, they save together: all leave now, or none.
        if request := request_to_end(reason) if engine.values.in_parts else self._stop.request:
            self._stop.request = request
            self._leave_early(engine, session)
        if self._checkpoints.checkpointer is not None:
            self._await_others(engine, session)  # the last checkpoint must include their updates

    def _await_others(self, engine: Engine, session: EndingSession) -> None:
        waiting = Waiting(None, self._job.say, self._job.runtime.clock)
        while self._checkpoints.checkpointer is not None and (others := engine.peers.at_work()):
            waiting.check(f"{', '.join(others)} to end the training", "")
            for hook in self._savers:
                hook.while_waiting(session)
            self._job.runtime.sleep(AT_WORK_S)
            if self._stop.request:
                self._checkpoints.forget()  # the others have made steps since
                self._leave_early(engine, session)
            self._handover.poll(engine)

    def _leave_early(self, engine: Engine, session: EndingSession) -> NoReturn:
        """Saves and leaves; the others continue."""
        say, step = self._job.say, engine.steps.global_step
        say(f"{engine.peers.task}: {self._stop.request}; it leaves the job at global step {step:,}")
        try:
            if self._checkpoints.checkpointer is not None and self._directory is not None:
                checkpointer = self._checkpoints.checkpointer
                self._checkpoints.save(engine, session.run, wait=True)
                if checkpointer.saved is not None:  # others may have made updates since
                    path = self._directory.path_of(checkpointer.saved.global_step)
                    say(f"the training resumes from {path} when restarted")
        finally:
            engine.checkpoints.end()
        self.leave()

    def _is_saved(self, engine: Engine) -> bool:
        """Whether nothing is left to do for a finished training: its chief has left, and not too early."""
        if self._directory is None or not self._stop.done:
            return False
        try:
            manifest = Checkpoint.open(self._directory.path_of(engine.steps.global_step)).manifest
        except CheckpointError:
            return False
        return manifest.complete or len(manifest.trainings) > self._job.trainings.number
