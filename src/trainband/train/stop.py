"""Stop: why a session ends, and for which tasks."""

from __future__ import annotations

from trainband.errors import Refused
from trainband.job.engine import Engine
from trainband.runtime.signals import request_to_end
from trainband.runtime.waiting import Say
from trainband.strategies.base import FINISHED, USED_UP, StepReport

DONE = "the job has made the requested updates"


class Stop:
    """The state of a session's end.

    Attributes:
      reason: as text; empty while the session continues.
      done: whether the training is over for the whole job.
      request: the request to end that this task received (see `trainband.runtime.signals`); empty without one.
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
        """Whether it ends only because this task's batches are used up."""
        return self.reason == USED_UP and not (self.done or self.request)

    def record(self, reason: str) -> None:
        """Records a reason to end; the first one counts."""
        self.reason = self.reason or reason

    def record_done(self, reason: str = DONE) -> None:
        """Records that the training is over for all."""
        self.done = True
        self.record(reason)

    def heed(self, engine: Engine, report: StepReport) -> None:
        """Records a step's report of the end."""
        if report.done:
            reached = self.last_step is not None and engine.steps.global_step >= self.last_step
            self.record_done(DONE if reached else FINISHED)
        elif report.stopped:
            self._say(f"{engine.peers.task} ends the training: {report.stopped}")
            self.record(report.stopped)
            self.request = self.request or request_to_end(report.stopped)

    def compare(self, engine: Engine, began_at: int) -> None:
        """Warns if this task was asked for a different number of steps than the chief, whose number counts.

        `began_at`: the global step at which the training began.
        """
        limit = engine.steps.training.last_step
        if self.last_step is None or self.last_step == limit:
            return
        mine = self.last_step - began_at
        theirs, end = ("no limit", "continues past that") if limit is None else (f"{limit - began_at:,}", "")
        self._say(
            f"WARNING: {engine.peers.task} was asked for {mine:,} steps and the chief for {theirs}; the chief's number "
            f"counts: this training {end or f'ends at global step {limit:,}'}. Give all workers the same number."
        )

    def finish(self, engine: Engine) -> None:
        """Chief only: ends the training for all."""
        self.is_deferred = False
        try:
            engine.steps.finish()
            self.done = True
        except Refused as exc:  # another task is the chief, which this one does not know yet
            self._say(f"{engine.peers.task} leaves the training but cannot end it for all: {exc}")

    def finish_if_deferred(self, engine: Engine) -> None:
        """Ends the training for all, if that was deferred until after the hooks."""
        if self.is_deferred:
            self.finish(engine)
