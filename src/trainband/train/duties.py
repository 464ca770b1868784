"""Duties: what the chief of a job has to do besides training, and how that goes from worker to worker."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trainband.checkpoint import CheckpointDirectory, Retention
from trainband.cluster.resolvers.joined import note_history, page_directory
from trainband.ps.statistics import CheckpointStatus
from trainband.strategies.base import Progress, StepReport
from trainband.strategies.engine import Member
from trainband.train.checkpointer import Checkpointer
from trainband.train.job import Job
from trainband.train.time_report import MOST_ROWS, TimeReport

if TYPE_CHECKING:
    from trainband.monitor.history import Recorder


class Duties:
    """The chief's part of one session: it has the directory, shows the progress and keeps the history. A context
    manager.

    Any worker may become the chief, and cease to be it, while it trains; `look` sees to that. On entering, the chief
    of the cluster's plan takes the directory, before it joins the job.

    Args:
      job: this task's part in it.
      directory: where checkpoints go, if anywhere.
      retention: which are kept.
      console: whether the progress is shown.
      history: whether a history is kept, where there is a directory.

    Raises:
      DirectoryLocked: another job writes into the directory.
    """

    def __init__(
        self,
        job: Job,
        directory: CheckpointDirectory | None,
        retention: Retention,
        *,
        console: bool,
        history: bool = False,
    ) -> None:
        self._job = job
        self._directory = directory
        self._retention = retention
        self._console = console
        self._history = history
        self._begun = False
        self._last_step: int | None = None
        self._saving = ExitStack()
        self._shown = ExitStack()
        self._checkpointer: Checkpointer | None = None
        self._recorder: Recorder | None = None
        self._times: TimeReport | None = None
        self._ended_because: str | None = None

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
        try:
            self._saving.__exit__(kind, exc, trace)
        finally:
            self._end_history(self._ended_because)

    def begin(self, last_step: int | None = None) -> None:
        """The training has begun: from now on, it goes on even where another job has the directory.

        Args:
          last_step: where it is to end, as far as this task knows.
        """
        self._begun = True
        self._last_step = last_step
        if self._job.had_duties:
            self._show()
            self._begin_history()

    def note(self, report: StepReport) -> None:
        """Notes a step of this task for the history, if this is the chief. Takes less than a microsecond."""
        if self._times is None and self._console:
            self._times = TimeReport(self._job.join().times)  # without the first step, which was compiled
        if self._recorder is not None:
            self._recorder.note(report)

    def note_values(self, values: Mapping[str, Any], global_step: int) -> None:
        """Notes other values for the history, by the names of their series."""
        if self._recorder is not None:
            self._recorder.note_values(values, global_step)

    def note_end(self, reason: str) -> None:
        """Says why the session ends."""
        self._ended_because = reason

    def where_time_went(self) -> str:
        """A table of where the time of the training went, and what to do about it, for whoever reads the console.

        The chief knows it. Without ps, another task only says so where all others must have waited for its data. Empty
        where there is nothing to say, or nobody who reads it.
        """
        times, cluster = self._times, self._job.cluster
        if times is None or not times.is_worth_telling:
            return ""
        engine = self._job.join()
        if engine.is_chief:
            times.note(engine.progress())
            return times.text(engine.task)
        if cluster is None or cluster.spec.ps or len(cluster.spec.workers) > MOST_ROWS:
            return ""
        return times.waits_for_data(engine.task)

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
            self._begin_history(takes_over=True)
        elif self._checkpointer is not None:
            self._checkpointer.joined(engine.job)

    def _give_up(self) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            self._saving.pop_all()  # unlike the end of a session, this waits for nothing that is being written
            checkpointer.give_up()
        self._shown.close()
        self._end_history(None)

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
            landed=self._note_checkpoint,
            runtime=job.runtime,
        )
        self._checkpointer = self._saving.enter_context(checkpointer)

    def _show(self) -> None:
        if self._console:
            from trainband.train.console import Console  # here: who shows nothing need not wait for rich

            self._shown.enter_context(Console(self._progress, self._job.say))

    def _progress(self) -> Progress | None:
        progress = self._job.join().progress()
        if self._times is not None:
            self._times.note(progress)
        return progress

    def _begin_history(self, *, takes_over: bool = False) -> None:
        path = self._directory.path if self._directory is not None and self._history else None
        page = page_directory()
        if page is not None:
            path = page if path is None else path
            self._tell_launcher(page, path)
        if path is None or self._recorder is not None:
            return
        from trainband.monitor.history import Recorder  # here: pyarrow takes a while, and few need it before

        job = self._job
        engine = job.join()
        restored = engine.restored
        is_ours = restored is not None and restored.path.parent == path
        is_first = not takes_over and job.trainings.number == 1
        resumes_from = restored if is_ours and is_first else None
        if takes_over or (is_first and engine.global_step > 0 and restored is None):
            began = "chief", f"{engine.task} has the chief's duties"  # of a job that is under way
        elif resumes_from is not None:
            began = "start", f"resumes from {resumes_from.path.name}"
        elif is_first and restored is not None:
            began = "start", f"begins from {restored.path}"
        else:
            began = "start", f"continues at global step {engine.global_step:,}" if engine.global_step else "begins"
        self._recorder = Recorder(
            path,
            engine.progress,
            job.say,
            task=engine.task,
            job=engine.job or job.token,
            global_step=engine.global_step,
            resumed=is_ours,
            began=began,
            ends_at=self._last_step,
            resumes_at=None if resumes_from is None else resumes_from.global_step,
            strategy=job.strategy_name,
            runtime=job.runtime,
        )

    def _tell_launcher(self, page: Path, directory: Path) -> None:
        try:
            note_history(page, directory)
        except OSError as exc:
            self._job.say(f"WARNING: the launcher cannot be told of {directory} for its page ({exc}).")

    def _end_history(self, reason: str | None) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close(reason)

    def _note_checkpoint(self, checkpoint: CheckpointStatus) -> None:
        if self._recorder is not None:
            step = checkpoint.global_step
            self._recorder.event("checkpoint", str(checkpoint), value=float(checkpoint.nbytes), global_step=step)
