"""Duties: what the chief of a job has to do besides training, and how that goes from worker to worker."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from trainband.checkpoint import CheckpointDirectory, Retention
from trainband.strategies.engine import Member
from trainband.train.checkpointer import Checkpointer

if TYPE_CHECKING:
    from trainband.train.trainer import Trainer


class Duties:
    """The chief's part of one session: it has the directory, and shows the progress. A context manager.

    Any worker may become the chief, and be it no more, while it trains; `look` sees to that. On entering, the spec's
    chief takes the directory, before it joins the job.

    Args:
      trainer: whose job.
      directory: where checkpoints go, if anywhere.
      retention: which are kept.
      console: whether the progress is shown.

    Raises:
      DirectoryLocked: another job writes into the directory.
    """

    def __init__(
        self, trainer: Trainer, directory: CheckpointDirectory | None, retention: Retention, *, console: bool
    ) -> None:
        self._trainer = trainer
        self._directory = directory
        self._retention = retention
        self._console = console
        self._begun = False
        self._saving = ExitStack()
        self._shown = ExitStack()
        self._checkpointer: Checkpointer | None = None

    @property
    def checkpointer(self) -> Checkpointer | None:
        """Who writes the checkpoints; on the chief, where there is a directory."""
        return self._checkpointer

    def __enter__(self) -> Duties:
        if self._trainer.is_to_be_chief:
            self._take_directory()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.close()
        self._saving.__exit__(kind, exc, trace)

    def begin(self) -> None:
        """The training has begun: from now on, no directory that another has ends it."""
        self._begun = True
        if self._trainer.had_duties:
            self._show()

    def look(self, replica: Member) -> bool:
        """Takes the duties over, or lays them down, where the job has another chief now; whether that is so.

        Raises:
          DirectoryLocked: before the training has begun: another job writes into the directory.
        """
        trainer, chief = self._trainer, replica.is_chief
        if self._begun and chief == trainer.had_duties:
            return False
        cluster, before = trainer.cluster, trainer.had_duties
        if before is None:
            before = chief if cluster is None else cluster.is_chief
        trainer.had_duties = chief
        if chief != before:
            if not chief:
                trainer.say(f"{replica.task} lays down the chief's duties, which another worker has now")
            elif cluster is None or cluster.is_chief:
                trainer.say(f"{replica.task} has the chief's duties again")
            else:
                trainer.say(f"{replica.task} takes over the chief's duties ({cluster.spec.chief} is gone)")
        if chief:
            self._take_over(replica)
        else:
            self._lay_down()
        return chief != before

    def _take_over(self, replica: Member) -> None:
        if self._checkpointer is None:
            self._take_directory(late=True)
        if self._begun:
            self._show()
        elif self._checkpointer is not None:
            self._checkpointer.joined(replica.job)

    def _lay_down(self) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            self._saving.pop_all()  # unlike the end of a session, this waits for nothing that is being written
            checkpointer.lay_down()
        self._shown.close()

    def _take_directory(self, *, late: bool = False) -> None:
        if self._directory is None:
            return
        trainer = self._trainer
        owner = "local" if trainer.cluster is None else str(trainer.cluster.task)
        checkpointer = Checkpointer(
            self._directory,
            owner,
            self._retention,
            trainer.say,
            announce=self._console,
            job=trainer.job,
            late=late,
            runtime=trainer.runtime,
        )
        self._checkpointer = self._saving.enter_context(checkpointer)

    def _show(self) -> None:
        if self._console:
            from trainband.train.console import Console  # here: who shows nothing need not wait for rich

            self._shown.enter_context(Console(self._trainer.join().progress, self._trainer.say))
