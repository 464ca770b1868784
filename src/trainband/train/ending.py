"""Ending: what the tasks of a job do at the end of a session, together or one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from trainband.checkpoint import Checkpoint, CheckpointDirectory
from trainband.errors import CheckpointError, PeerError
from trainband.runtime.signals import EXIT_CODES, end_for, request_to_end
from trainband.runtime.waiting import Waiting
from trainband.strategies.engine import Engine
from trainband.train.hook_loop import HookLoop
from trainband.train.hooks.checkpoint_saver import CheckpointSaverHook
from trainband.train.hooks.session import SavingSession
from trainband.train.job import Job
from trainband.train.saves import Saves
from trainband.train.stop import Stop

AT_WORK_S = 0.2
"""Between two questions whether others still train."""


class Ending:
    """The end of one session: the last checkpoint, the hooks, and who waits for whom.

    Args:
      job: this task's part in it.
      directory: the checkpoints, if there are any.
      hooks: of the session.
      stop: of the session.
      saves: of the session.
      remake: makes the updates again that a ps has lost.
      look: sees whether this task has the chief's duties now.
    """

    def __init__(
        self,
        job: Job,
        directory: CheckpointDirectory | None,
        hooks: HookLoop,
        stop: Stop,
        saves: Saves,
        *,
        remake: Callable[[Engine], None],
        look: Callable[[Engine], None],
    ) -> None:
        self._job = job
        self._directory = directory
        self._hooks = hooks
        self._savers = [hook for hook in hooks.hooks if isinstance(hook, CheckpointSaverHook)]
        self._stop = stop
        self._saves = saves
        self._remake = remake
        self._look = look
        self.has_begun = False
        """Whether the session is ending."""

    def run(self, engine: Engine, session: SavingSession) -> None:
        """Ends the session as it should.

        Raises:
          CheckpointError: the last checkpoint could not be written, or updates are lost.
          SystemExit: a signal has asked this task to end, and it leaves while the others go on.
        """
        self.has_begun = True
        stop = self._stop
        stop.finish_if_deferred(engine)
        if self._job.had_duties or (engine.is_chief and not self._is_saved(engine)):
            self._look(engine)
        if self._job.had_duties and stop.done:
            self._remake(engine)
        if self._directory is not None:
            self._saves.leave_state(engine)
        if not stop.done:
            self._pause(engine, session)
        # In parts, all do together what there is to do, but only the chief begins what it takes to save.
        try:
            self._hooks.end(session, last=self._savers if engine.in_parts else ())
        except CheckpointError:
            engine.end()  # the others wait for what else they shall give
            raise
        engine.end()
        self._saves.finish(engine)

    def leave(self) -> NoReturn:
        """Leaves the job because a signal has asked this task to end.

        Raises:
          SystemExit: always, with the code that a shell gives to a program that this signal has ended.
        """
        self._job.close()
        end_for(self._stop.request)

    def leave_anyway(self, engine: Engine | None, exc: BaseException) -> None:
        """Of a task that was asked to leave, a failure of others is no failure: they may be leaving, too.

        Raises:
          SystemExit: as `leave`, if this is such a task and such a failure.
        """
        if engine is not None and self._stop.request and isinstance(exc, PeerError):
            self._job.say(f"{engine.task}: {self._stop.request}; it leaves in the middle of a step: {exc}")
            raise SystemExit(EXIT_CODES[self._stop.request]) from exc

    def _pause(self, engine: Engine, session: SavingSession) -> None:
        """Ends this task's part in a training in which others go on."""
        expected = engine.global_step
        reason = engine.pause(self._stop.reason)
        if self._directory is not None and (engine.unused or engine.global_step < expected):
            self._saves.leave_state(engine)  # by now all is known of its last steps
        # In parts, they save together: all leave now, or none.
        if request := request_to_end(reason) if engine.in_parts else self._stop.request:
            self._stop.request = request
            self._leave_early(engine)
        if self._saves.checkpointer is not None:
            self._await_others(engine, session)  # what they still do is to be in the last checkpoint

    def _await_others(self, engine: Engine, session: SavingSession) -> None:
        waiting = Waiting(None, self._job.say, self._job.runtime.clock)
        while self._saves.checkpointer is not None and (others := engine.at_work()):
            waiting.check(f"{', '.join(others)} to end the training", "")
            for hook in self._savers:
                hook.while_waiting(session)
            self._job.runtime.sleep(AT_WORK_S)
            if self._stop.request:
                self._saves.forget()  # the others have gone on since
                self._leave_early(engine)
            self._look(engine)

    def _leave_early(self, engine: Engine) -> NoReturn:
        """Saves and leaves; the others go on."""
        say, step = self._job.say, engine.global_step
        say(f"{engine.task}: {self._stop.request}; it leaves the job at global step {step:,}")
        try:
            if self._saves.checkpointer is not None and self._directory is not None:
                checkpointer = self._saves.checkpointer
                self._saves.save(engine, wait=True)
                if checkpointer.saved is not None:  # others may have made updates since
                    path = self._directory.path_of(checkpointer.saved.global_step)
                    say(f"the training resumes from {path} when it is started again")
        finally:
            engine.end()
        self.leave()

    def _is_saved(self, engine: Engine) -> bool:
        """Whether nothing is left to be done for a training that is over: its chief has left, and not too early."""
        if self._directory is None or not self._stop.done:
            return False
        try:
            manifest = Checkpoint.open(self._directory.path_of(engine.global_step)).manifest
        except CheckpointError:
            return False
        return manifest.complete or len(manifest.trainings) > self._job.trainings.number
