"""Duties: the chief's tasks besides training, and their handover from worker to worker."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trainband.checkpoint import CheckpointDirectory, Retention
from trainband.cluster.resolvers.joined import page_directory, report_history
from trainband.job.checkpoints import CheckpointStatus
from trainband.job.engine import Peers
from trainband.strategies.base import Progress, StepReport
from trainband.train.checkpointer import Checkpointer, SessionCheckpoints
from trainband.train.job import Job
from trainband.train.time_report import MOST_ROWS, TimeReport

if TYPE_CHECKING:
    from trainband.monitor.history import Recorder


class Duties:
    """The chief's part of one session: it holds the directory, shows the progress and keeps the history. A context
    manager.

    Any worker may become the chief, or stop being it, while it trains; `poll` handles that. On entering, the chief
    of the cluster's plan takes the directory, before it joins the job.

    Args:
      job: this task's part in the job.
      directory: of the checkpoints, if any.
      retention: which are kept.
      checkpoints: of the session; the chief's get their writer here.
      console: whether the progress is shown.
      history: whether a history is kept if there is a directory.

    Raises:
      DirectoryLocked: another job writes into the directory.
    """

    def __init__(
        self,
        job: Job,
        directory: CheckpointDirectory | None,
        retention: Retention,
        checkpoints: SessionCheckpoints,
        *,
        console: bool,
        history: bool = False,
    ) -> None:
        self._job = job
        self._directory = directory
        self._retention = retention
        self._checkpoints = checkpoints
        self._console = console
        self._history = history
        self._started = False
        self._last_step: int | None = None
        self._saving = ExitStack()
        self._shown = ExitStack()
        self._recorder: Recorder | None = None
        self._times: TimeReport | None = None
        self._ended_because: str | None = None

    def __enter__(self) -> Duties:
        if self._job.is_chief:
            self._acquire_directory()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.close()
        try:
            self._saving.__exit__(kind, exc, trace)
        finally:
            self._end_history(self._ended_because)

    def start(self, last_step: int | None = None) -> None:
        """Begins the duties with the training, which from now on continues even if another job holds the directory.

        Args:
          last_step: where it is to end, as far as this task knows.
        """
        self._started = True
        self._last_step = last_step
        if self._job.had_duties:
            self._show()
            self._start_history()

    def record_step(self, report: StepReport) -> None:
        """Records a step of this task in the history, if this is the chief. Takes less than a microsecond."""
        if self._times is None and self._console:
            self._times = TimeReport(self._job.join().steps.times)  # without the first step, which was compiled
        if self._recorder is not None:
            self._recorder.rows.record_step(report)

    def record_values(self, values: Mapping[str, Any], global_step: int) -> None:
        """Records other values in the history, by the names of their series."""
        if self._recorder is not None:
            self._recorder.rows.record_values(values, global_step)

    def set_end_reason(self, reason: str) -> None:
        """Sets why the session ends."""
        self._ended_because = reason

    def where_time_went(self) -> str:
        """Returns a table of where the time of the training went, with advice, for the console.

        The chief has it. Without ps, another task only reports if all others must have waited for its data. Empty
        if there is nothing to report, or no console.
        """
        times, cluster = self._times, self._job.cluster
        if times is None or not times.is_worth_reporting:
            return ""
        peers = self._job.join().peers
        if peers.is_chief:
            times.record(peers.progress())
            return times.text(peers.task)
        if cluster is None or cluster.spec.ps or len(cluster.spec.workers) > MOST_ROWS:
            return ""
        return times.waits_for_data(peers.task)

    def poll(self, peers: Peers) -> bool:
        """Takes over or gives up the duties if the job has another chief now; returns whether it has.

        Raises:
          DirectoryLocked: before the training has begun: another job writes into the directory.
        """
        job, chief = self._job, peers.is_chief
        if self._started and chief == job.had_duties:
            return False
        cluster, before = job.cluster, job.had_duties
        if before is None:
            before = chief if cluster is None else cluster.is_chief
        job.had_duties = chief
        if chief != before:
            if not chief:
                job.say(f"{peers.task} gives up the chief's duties, which another worker has now")
            elif cluster is None or cluster.is_chief:
                job.say(f"{peers.task} takes back the chief's duties")
            else:
                job.say(f"{peers.task} takes over the chief's duties ({cluster.spec.chief} is gone)")
        if chief:
            self._start_duties(peers)
        else:
            self._stop_duties()
        return chief != before

    def _start_duties(self, peers: Peers) -> None:
        if self._checkpoints.checkpointer is None:
            self._acquire_directory(late=True)
        if self._started:
            self._show()
            self._start_history(takes_over=True)
        elif self._checkpoints.checkpointer is not None:
            self._checkpoints.checkpointer.joined(peers.job)

    def _stop_duties(self) -> None:
        checkpointer, self._checkpoints.checkpointer = self._checkpoints.checkpointer, None
        if checkpointer is not None:
            self._saving.pop_all()  # unlike the end of a session, this waits for no write
            checkpointer.abandon()
        self._shown.close()
        self._end_history(None)

    def _acquire_directory(self, *, late: bool = False) -> None:
        if self._directory is None:
            return
        job = self._job
        checkpointer = Checkpointer(
            self._directory,
            "local" if job.cluster is None else str(job.cluster.task),
            self._retention,
            job.say,
            job=job.id,
            late=late,
            on_commit=self._report_checkpoint,
            runtime=job.runtime,
        )
        self._checkpoints.checkpointer = self._saving.enter_context(checkpointer)

    def _show(self) -> None:
        if self._console:
            from trainband.train.console import Console  # here: importing rich takes a while

            self._shown.enter_context(Console(self._progress, self._job.say))

    def _progress(self) -> Progress | None:
        progress = self._job.join().peers.progress()
        if self._times is not None:
            self._times.record(progress)
        return progress

    def _start_history(self, *, takes_over: bool = False) -> None:
        path = self._directory.path if self._directory is not None and self._history else None
        page = page_directory()
        if page is not None:
            path = page if path is None else path
            self._report_history(page, path)
        if path is None or self._recorder is not None:
            return
        from trainband.monitor.history import (  # here: pyarrow takes a while, and few need it before
            Recorder,
            TrainingStart,
        )

        job = self._job
        engine = job.join()
        peers, restored, step = engine.peers, engine.checkpoints.restored, engine.steps.global_step
        is_ours = restored is not None and restored.path.parent == path
        is_first = not takes_over and job.trainings.number == 1
        resumes_from = restored if is_ours and is_first else None
        if takes_over or (is_first and step > 0 and restored is None):
            began = "chief", f"{peers.task} has the chief's duties"  # of a job that is under way
        elif resumes_from is not None:
            began = "start", f"resumes from {resumes_from.path.name}"
        elif is_first and restored is not None:
            began = "start", f"begins from {restored.path}"
        else:
            began = "start", f"continues at global step {step:,}" if step else "begins"
        start = TrainingStart(
            task=peers.task,
            job=peers.job or job.token,
            global_step=step,
            resumed=is_ours,
            began=began,
            ends_at=self._last_step,
            resumes_at=None if resumes_from is None else resumes_from.global_step,
            strategy=job.strategy_name,
        )
        self._recorder = Recorder(path, peers.progress, job.say, start, runtime=job.runtime)

    def _report_history(self, page: Path, directory: Path) -> None:
        try:
            report_history(page, directory)
        except OSError as exc:
            self._job.say(f"WARNING: could not tell the launcher of {directory} for its page ({exc})")

    def _end_history(self, reason: str | None) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close(reason)

    def _report_checkpoint(self, checkpoint: CheckpointStatus) -> None:
        if self._recorder is not None:
            step = checkpoint.global_step
            self._recorder.rows.event("checkpoint", str(checkpoint), value=float(checkpoint.nbytes), global_step=step)
        if self._console:
            self._job.say(str(checkpoint))
