"""MonitoredSession: one training run, from the first step or from a checkpoint, with hooks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trainband.checkpoint import Checkpoint, CheckpointDirectory, Retention
from trainband.errors import CheckpointError, YourError
from trainband.job.checkpoints import CheckpointStatus, RestoreFrom
from trainband.job.engine import Engine, Peers
from trainband.model.batch import Dealt
from trainband.model.batch_check import check_batch
from trainband.model.variables import PyTree
from trainband.model.worker_state import read_worker_states, redistributed
from trainband.strategies.base import USED_UP, StepReport
from trainband.train.batch_feed import Feed
from trainband.train.checkpointer import SessionCheckpoints
from trainband.train.data_position import DataPosition
from trainband.train.device_wait import DeviceWait
from trainband.train.duties import Duties
from trainband.train.ending import Ending
from trainband.train.handover import Handover
from trainband.train.hook_loop import HookLoop, require_hooks
from trainband.train.hooks.base import Hook
from trainband.train.hooks.checkpoint_saver import CheckpointSaverHook
from trainband.train.loss_watch import LossWatch
from trainband.train.lost_updates import LostUpdates
from trainband.train.session_view import SessionTrainer, SessionView
from trainband.train.stop import Stop
from trainband.train.tensorboard_files import EventFiles

if TYPE_CHECKING:
    from trainband.train.tensorboard_file import EventFile


class MonitoredSession(SessionView):
    """One training run of a job, with the meaning of TensorFlow's MonitoredTrainingSession.

    ::

        with trainband.MonitoredSession(trainer, checkpoint_dir="runs/a", hooks=[StopAtStepHook(1000)]) as session:
            batches = session.feed(batches)
            while not session.should_stop():
                session.run(next(batches))

    On entering, the chief restores the newest checkpoint in the directory or makes the initial values, and the other
    workers wait, naming the tasks they wait for. `Trainer.fit` is such a loop.

    If the chief is lost, its duties move to another worker, and back once it has returned: after each step and at
    the end, every task checks whether it is the chief. The chief at that moment saves, or does the final duties.

    Args:
      trainer: a `Trainer`: the model and its strategy.
      checkpoint_dir: of the checkpoints; the chief and all ps must see it under this path. `None`: none.
      hooks: actions at the steps. A `CheckpointSaverHook` is added if there is a directory and `hooks` contains
        none.
      save_steps: global steps between two checkpoints.
      save_secs: seconds between two, if `save_steps` is not given.
      retention: which checkpoints are kept.
      console: whether the chief shows progress; by default as the trainer does.

    Raises:
      YourError: `checkpoint_dir` is a file, or `hooks` is invalid.
      DirectoryLocked: another job writes into the directory.
      ModelMismatch: the checkpoint is of another model.
      CheckpointError: it cannot be read.
    """

    def __init__(
        self,
        trainer: SessionTrainer,
        *,
        checkpoint_dir: str | Path | None = None,
        hooks: Sequence[Hook] = (),
        save_steps: int | None = None,
        save_secs: float = 600.0,
        retention: Retention | None = None,
        console: bool | None = None,
    ) -> None:
        require_hooks(hooks)
        job = trainer.job
        # Absolute, because the ps may have been started elsewhere.
        path = None if checkpoint_dir is None else Path(checkpoint_dir).absolute()
        if path is not None and path.exists() and not path.is_dir():
            raise YourError(f"checkpoint_dir must be a directory, but {path} is a file.")
        if path is not None:
            job.add_checkpoint_dir(path)
        super().__init__(trainer, None if path is None else CheckpointDirectory(path, job.say))
        if path is not None and not any(isinstance(hook, CheckpointSaverHook) for hook in hooks):
            secs = None if save_steps else save_secs
            hooks = [*hooks, CheckpointSaverHook(save_steps=save_steps, save_secs=secs, clock=job.runtime.clock)]
        self._hooks = HookLoop(hooks)
        self._stack = ExitStack()
        self._stop = Stop(job.say)
        self._position = DataPosition(is_saved=path is not None)
        lost = LostUpdates(job.say, self._position)
        self._checkpoints = SessionCheckpoints(job, self._position, self._stop, lost)
        self._duties = Duties(
            job,
            self.directory,
            retention or Retention(),
            self._checkpoints,
            console=trainer.console if console is None else console,
            history=trainer.keeps_history,
        )
        self._events = EventFiles(job.say)
        self._handover = Handover(job, self._duties, self._checkpoints, self._stop, self._hooks, self._events)
        self._ending = Ending(job, self.directory, self._hooks, self._stop, self._checkpoints, lost, self._handover)
        self._losses = LossWatch(job.say)
        self._is_over = False
        self._validation: tuple[int, Mapping[str, float]] | None = None

    @property
    def saved(self) -> CheckpointStatus | None:
        """The last committed checkpoint of this session; on the chief."""
        checkpointer = self._checkpoints.checkpointer
        return checkpointer.saved if checkpointer is not None else None

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is ordered or being written; on the chief."""
        checkpointer = self._checkpoints.checkpointer
        return checkpointer is not None and checkpointer.busy

    @property
    def validation(self) -> tuple[int, Mapping[str, float]] | None:
        """The global step and the metrics of the last validation in which this task took part."""
        return self._validation

    @property
    def stopped(self) -> str:
        """Why it ends, as text; empty while it continues."""
        return self._stop.reason

    def should_stop(self) -> bool:
        """Whether there is nothing left to do."""
        return bool(self._stop.reason)

    def events(self, directory: str | Path | None = None) -> EventFile:
        """Returns TensorBoard's event file: one for all hooks that write to a directory.

        Args:
          directory: where; by default the `checkpoint_dir`.

        Raises:
          YourError: there is neither.
        """
        path = self.checkpoint_dir if directory is None else Path(directory)
        if path is None:
            raise YourError("summaries need a directory; give the hook an output_dir, or the session a checkpoint_dir.")
        return self._events.open(path, global_step=self.global_step, is_chief=self.is_chief)

    def feed(self, batches: Iterable[PyTree], *, repeat: bool = True) -> Feed:
        """Returns the batches, checked, prepared ahead, and starting at this worker's position in the checkpoint.

        Args:
          batches: any iterable; `trainband.data.shared` is connected with the job here.
          repeat: begin another pass when one ends, if it can be iterated again.
        """
        engine, position = self._joined(), self._position
        bind = getattr(batches, "bind", None)
        if bind is not None:
            bind(engine.peers.lease, self._job.say, self._job.runtime)
        start = position.found(engine.checkpoints, self._job.trainings.number)
        feed = self.trainer.feed(batches, repeat=repeat, start=start, track=position.is_saved)
        position.follow(self._stack.enter_context(feed), engine.steps)
        return feed

    def run(self, batch: PyTree) -> StepReport:
        """Makes one step on one batch, with the hooks before and after it; several if the feed gives several.

        Raises:
          SystemExit: SIGTERM or Ctrl-C has ended this session after the step before, but the loop continues.
          NonFiniteGradient: the gradients stay NaN or infinite.
          PeerError: a ps cannot be reached or has died.
        """
        engine, stop = self._joined(), self._stop
        if stop.request and stop.reason and not self._ending.has_begun:
            self.__exit__(None, None, None)
            self._ending.leave()
        self._device_wait.end()
        report = self._hooks.run(self, lambda: self._step(engine, batch))
        engine.steps.times.end_step(report.global_step, report.steps)
        stop.finish_if_deferred(engine)
        if stop.request:
            stop.record(stop.request)
        return report

    def _step(self, engine: Engine, batch: PyTree) -> StepReport:
        feed = self._position.feed
        if feed is None or batch is not feed.given:  # a feed checks its batches, if possible in its thread
            batch = self.trainer.without_ids(batch)
            check_batch(batch.batch if isinstance(batch, Dealt) else batch, "the batch")
        report = engine.steps.step(batch)
        self._device_wait.start(report.loss)
        if not report.done:  # otherwise it is checked at the end
            self._handover.poll(engine)
        self._position.advance(report.steps)
        self._duties.record_step(report)
        self._losses.check(engine.peers.task, report)
        if report.worker_state is not None:
            self._checkpoints.store_worker_state(engine, behind=report.worker_state)
        self._stop.heed(engine, report)
        return report

    def used_up(self) -> None:
        """Ends this session because there are no more batches."""
        self._stop.record(USED_UP)

    def request_stop(self, reason: str = "") -> None:
        """Ends this session after the current step; on the chief, it ends the training of the whole job."""
        self._stop.record(reason or "it was asked to stop")
        if not self.is_chief:
            return
        if self._hooks.is_after_step and self.in_parts:
            self._stop.is_deferred = True  # until after the hooks, in which all may act together
        else:
            self._stop.finish(self._joined())

    def save(
        self, *, at: int | None = None, wait: bool = False, metrics: Mapping[str, float] | None = None, best: str = ""
    ) -> None:
        """Chief only: orders a checkpoint while the training continues.

        Args:
          at: the global step to save at. Default: soon, at the next step that all tasks can save at together.
          wait: save now, and return when it is written; the others may have to wait meanwhile.
          metrics: of a validation of the current params, to be stored with it.
          best: the metric by which this is the best checkpoint so far.

        Raises:
          CheckpointError: with `wait`, it could not be written.
          ClusterError: this task is not the chief, or the session has no directory.
        """
        self._checkpoints.save(self._joined(), self.run, at=at, wait=wait, metrics=metrics, best=best)

    def note_values(self, values: Mapping[str, Any]) -> None:
        """Records these values in the history as series of their own; on the chief, if there is a directory.

        Args:
          values: numbers or scalar arrays by their names.
        """
        self._duties.record_values(values, self.global_step)

    def record_validation(self, metrics: Mapping[str, float], best: str = "") -> None:
        """Saves, on the chief, the params that were just validated, if they are the best so far.

        If they are in parts, all tasks must call this at the same time: they contribute their parts.

        Args:
          metrics: of the validation.
          best: the metric by which these params are the best; empty if they are not.

        Raises:
          PeerError: another worker is gone.
        """
        self._validation = self.global_step, dict(metrics)
        self.note_values({f"validation/{name}": value for name, value in metrics.items()})
        self._checkpoints.record_validation(self._joined(), metrics, best)

    def __enter__(self) -> MonitoredSession:
        try:
            self._enter()
        except BaseException:
            self._release(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._is_over:
            return False
        if isinstance(exc, StopIteration):  # from next(batches): the end of the data is not an error
            self.used_up()
        elif exc is not None:
            self._release(kind, exc, trace)
            self._ending.leave_anyway(self._engine, exc)
            return False
        told = self._duties.where_time_went()  # now, because the others leave at the end
        try:
            self._ending.run(self._joined(), self)
        except CheckpointError:
            # Trained but not saved: the job stays, so that its params can still be read and saved elsewhere.
            self._duties.set_end_reason(f"{self._stop.reason}; could not write its last checkpoint")
            self._stack.__exit__(*sys.exc_info())
            raise
        except BaseException as failure:
            self._release(*sys.exc_info())
            self._ending.leave_anyway(self._engine, failure)
            raise
        self._release(None, None, None)
        if told:
            self.say(told)
        # It came too late for this training, which is over; the next one must not ignore the request.
        self._job.request = self._job.request or self._stop.request
        return True

    def _enter(self) -> None:
        trainings, stop = self._job.trainings, self._stop
        self._stack.enter_context(self._duties)
        self._engine = engine = self._job.join(self._restore_from())
        self._device_wait = DeviceWait(engine.steps.times, self._job.runtime)
        self._stack.callback(self._device_wait.close)
        self._duties.poll(engine.peers)
        self._recall_trainings(engine.steps.global_step)
        trainings.start(engine.steps.global_step)
        self._handover.set_limit()
        if not engine.steps.start_training(trainings.end(stop.last_step), trainings.starts):
            stop.record_done()
        trainings.learn(engine.steps.training.starts)
        self._handover.set_limit()
        if not (engine.peers.is_chief or stop.done):
            stop.compare(engine, trainings.began_at)
        self._duties.poll(engine.peers)
        for hook in self._hooks.hooks:
            self._stack.callback(hook.close)
        self._stack.enter_context(self._events)
        self._duties.start(trainings.end(stop.last_step))
        self._losses.start(engine.steps.global_step)
        self._hooks.begin(self)
        self._listen_for_requests_to_end(engine.peers)

    def _restore_from(self) -> RestoreFrom | None:
        directory, cluster = self.directory, self._job.cluster
        if directory is None:
            return None
        tasks = [str(task) for task in cluster.spec.workers] if cluster is not None else ["local"]

        def worker_states(checkpoint: Checkpoint) -> Mapping[int, bytes]:
            dealt = redistributed(read_worker_states(checkpoint), tasks)
            return {number: one.to_bytes() for number, one in dealt.items()}

        return RestoreFrom(candidates=directory.candidates, worker_state=worker_states)

    def _recall_trainings(self, global_step: int) -> None:
        """Reads the training runs from the checkpoint that the job resumes from, if its chief has not begun yet.

        That chief may be gone by now, and this one in its place.
        """
        if self.directory is None or self._job.trainings.starts or not global_step:
            return
        with contextlib.suppress(CheckpointError):  # the chief reports the error
            self._job.trainings.resume(Checkpoint.open(self.directory.path_of(global_step)).manifest)

    def _listen_for_requests_to_end(self, peers: Peers) -> None:
        """Makes a first SIGTERM or Ctrl-C end this session after its step, with a last checkpoint; a second kills.

        Only if that is useful: there is something to save, or others continue without this task.
        """
        cluster = self._job.cluster
        if self.directory is None and not (cluster is not None and cluster.spec.ps):
            return

        self._stop.request = self._job.request

        def end_on_request(request: str) -> None:
            self._stop.request = request
            peers.shorten_waits(request)

        self._stack.enter_context(self._job.runtime.on_request_to_end(end_on_request))

    def _release(self, kind: Any, exc: BaseException | None, trace: TracebackType | None) -> None:
        """Releases everything; after an error, the job too. The first error is the one that is raised."""
        self._is_over = True
        failure = "" if exc is None or isinstance(exc, SystemExit) else f"{type(exc).__name__}: {exc}"
        self._duties.set_end_reason(failure or self._stop.reason)
        try:
            self._stack.__exit__(kind, exc, trace)
        except Exception as failure:
            if exc is None:
                exc = failure
                raise
            self.say(f"WARNING: closing the session also failed: {type(failure).__name__}: {failure}")
        finally:
            if exc is not None and not isinstance(exc, SystemExit):
                self._job.close(f"{type(exc).__name__}: {exc}".rstrip(": "))
