"""Stop: why and for whom a session ends."""

from __future__ import annotations

from trainband.errors import Refused
from trainband.runtime.signals import request_to_end
from trainband.runtime.waiting import Say
from trainband.strategies.base import FINISHED, USED_UP, StepReport
from trainband.strategies.engine import Engine

DONE = "the job has made the updates that were asked for"


class Stop:
    """What is known of a session's end.

    Attributes:
      reason: in words; empty while the session goes on.
      done: whether the training is over for the whole job.
      request: the request to end that this task has had (see `trainband.runtime.signals`); empty without one.
      last_step: the global step to end at; `None` without a limit.
      is_deferred: whether the chief ends the training for all as soon as the hooks have run.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self.reason = ""
        self.done = False
        self.request = ""
        self.last_step: int | None = None
        self.is_deferred = False

    @property
    def is_complete(self) -> bool:
        """Whether the training counts as complete: all its updates are made, or this task's batches are used up."""
        return self.done or self.is_used_up

    @property
    def is_used_up(self) -> bool:
        """Whether it ends for no other reason than that this task's batches are used up."""
        return self.reason == USED_UP and not (self.done or self.request)

    def note(self, reason: str) -> None:
        """Notes a reason to end; the first one counts."""
        self.reason = self.reason or reason

    def note_done(self, reason: str = DONE) -> None:
        """Notes that the training is over for all."""
        self.done = True
        self.note(reason)

    def heed(self, engine: Engine, report: StepReport) -> None:
        """Notes what a step's report says of the end."""
        if report.done:
            reached = self.last_step is not None and engine.global_step >= self.last_step
            self.note_done(DONE if reached else FINISHED)
        elif report.stopped:
            self._say(f"{engine.task} ends the training: {report.stopped}")
            self.note(report.stopped)
            self.request = self.request or request_to_end(report.stopped)

    def finish(self, engine: Engine) -> None:
        """Chief only: ends the training for all."""
        self.is_deferred = False
        try:
            engine.finish()
            self.done = True
        except Refused as exc:  # another has the chief's duties, of which this one has not heard yet
            self._say(f"{engine.task} leaves the training, and cannot end it for all: {exc}")

    def finish_if_deferred(self, engine: Engine) -> None:
        """Ends the training for all, if that has waited for the hooks."""
        if self.is_deferred:
            self.finish(engine)
