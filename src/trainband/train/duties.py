"""Duties: what the chief of a job has to do besides training, and how that goes from worker to worker."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from trainband.checkpoint import CheckpointDirectory, Retention
from trainband.strategies.engine import Member
from trainband.train.checkpointer import Checkpointer
from trainband.train.job import Job


class Duties:
    """The chief's part of one session: it has the directory, and shows the progress. A context manager.

    Any worker may become the chief, and cease to be it, while it trains; `look` sees to that. On entering, the chief
    of the cluster's plan takes the directory, before it joins the job.

    Args:
      job: this task's part in it.
      directory: where checkpoints go, if anywhere.
      retention: which are kept.
      console: whether the progress is shown.

    Raises:
      DirectoryLocked: another job writes into the directory.
    """

    def __init__(self, job: Job, directory: CheckpointDirectory | None, retention: Retention, *, console: bool) -> None:
        self._job = job
        self._directory = directory
        self._retention = retention
        self._console = console
        self._begun = False
        self._saving = ExitStack()
        self._shown = ExitStack()
        self._checkpointer: Checkpointer | None = None

    @property
    def checkpointer(self) -> Checkpointer | None:
        """What writes the checkpoints; on the chief, where there is a directory."""
        return self._checkpointer

    def __enter__(self) -> Duties:
        if self._job.is_chief:
            self._take_directory()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.close()
        self._saving.__exit__(kind, exc, trace)

    def begin(self) -> None:
        """The training has begun: from now on, it goes on even where another job has the directory."""
        self._begun = True
        if self._job.had_duties:
            self._show()

    def look(self, engine: Member) -> bool:
        """Takes the duties over, or gives them up, where the job has another chief now; whether that is so.

        Raises:
          DirectoryLocked: before the training has begun: another job writes into the directory.
        """
        job, chief = self._job, engine.is_chief
        if self._begun and chief == job.had_duties:
            return False
        cluster, before = job.cluster, job.had_duties
        if before is None:
            before = chief if cluster is None else cluster.is_chief
        job.had_duties = chief
        if chief != before:
            if not chief:
                job.say(f"{engine.task} gives up the chief's duties, which another worker has now")
            elif cluster is None or cluster.is_chief:
                job.say(f"{engine.task} has the chief's duties again")
            else:
                job.say(f"{engine.task} takes over the chief's duties ({cluster.spec.chief} is gone)")
        if chief:
            self._take_over(engine)
        else:
            self._give_up()
        return chief != before

    def _take_over(self, engine: Member) -> None:
        if self._checkpointer is None:
            self._take_directory(late=True)
        if self._begun:
            self._show()
        elif self._checkpointer is not None:
            self._checkpointer.joined(engine.job)

    def _give_up(self) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            self._saving.pop_all()  # unlike the end of a session, this waits for nothing that is being written
            checkpointer.give_up()
        self._shown.close()

    def _take_directory(self, *, late: bool = False) -> None:
        if self._directory is None:
            return
        job = self._job
        checkpointer = Checkpointer(
            self._directory,
            "local" if job.cluster is None else str(job.cluster.task),
            self._retention,
            job.say,
            announce=self._console,
            job=job.id,
            late=late,
            runtime=job.runtime,
        )
        self._checkpointer = self._saving.enter_context(checkpointer)

    def _show(self) -> None:
        if self._console:
            from trainband.train.console import Console  # here: who shows nothing need not wait for rich

            self._shown.enter_context(Console(self._job.join().progress, self._job.say))
