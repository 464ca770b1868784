"""MonitoredSession: one training, from the first step or from a checkpoint, with hooks beside it."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from trainband.checkpoint import Checkpoint, CheckpointDirectory, Retention
from trainband.errors import CheckpointError, ClusterError, PeerError, Refused, YourError
from trainband.model.variables import PyTree
from trainband.model.worker_state import read_worker_states, redistributed
from trainband.ps.statistics import CheckpointStatus
from trainband.ps.worker.checkpointing import RestoreFrom
from trainband.runtime import signals
from trainband.runtime.signals import PREEMPTED
from trainband.runtime.waiting import Waiting
from trainband.strategies.base import FINISHED, USED_UP, Progress, StepReport
from trainband.strategies.engine import Engine
from trainband.train.checkpointer import About, Checkpointer
from trainband.train.duties import Duties
from trainband.train.feed import Feed
from trainband.train.passes import Mark, Position
from trainband.train.result import Evaluation

if TYPE_CHECKING:
    from trainband.train.event_file import EventFile
    from trainband.train.hooks.base import Hook
    from trainband.train.trainer import Trainer

DONE = "the job has made the updates that were asked for"

MORE_SAVES = 3
"""How often a checkpoint that is waited for is tried again, where ps die over it."""

AT_WORK_S = 0.2
"""Between two questions whether others still train."""

PLACES = 3
"""Of how many calls the places in the data are kept: a checkpoint may speak of the call before the last."""


class MonitoredSession:
    """One training of a job, with the meaning of TensorFlow's MonitoredTrainingSession.

    ::

        with trainband.MonitoredSession(trainer, checkpoint_dir="runs/a", hooks=[StopAtStepHook(1000)]) as session:
            batches = session.feed(batches)
            while not session.should_stop():
                session.run(next(batches))

    On entering, the chief restores the newest checkpoint in the directory or makes the first values, and the other
    workers wait, saying for whom. `Trainer.fit` is such a loop.

    The chief's duties go to another worker where the chief is lost, and back when it is there again: whose they are is
    looked at after every step and at the end. Who gets them saves from then on, and whoever has them at the end does
    what is to be done there.

    Args:
      trainer: what is trained, and under which strategy.
      checkpoint_dir: where checkpoints are and go; the chief and all ps must see it under this path. `None`: none.
      hooks: what happens beside the steps. A `CheckpointSaverHook` is added where there is a directory and none among
        them.
      save_steps: global steps between two checkpoints.
      save_secs: seconds between two, where `save_steps` is not given.
      retention: which checkpoints are kept.
      console: whether the chief shows progress; as the trainer does, when left out.

    Raises:
      DirectoryLocked: another job writes into the directory.
      ModelMismatch: the checkpoint is of another model.
      CheckpointError: it cannot be read.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        checkpoint_dir: str | Path | None = None,
        hooks: Sequence[Hook] = (),
        save_steps: int | None = None,
        save_secs: float = 600.0,
        retention: Retention | None = None,
        console: bool | None = None,
    ) -> None:
        from trainband.train.hooks.checkpoint_saver import CheckpointSaverHook

        self._trainer = trainer
        self._say = trainer.say
        self._runtime = trainer.runtime
        self._hooks = list(hooks)
        # Absolute, because the ps may have been started elsewhere.
        path = None if checkpoint_dir is None else Path(checkpoint_dir).absolute()
        self._directory = None if path is None else CheckpointDirectory(path, self._say)
        if self._directory is not None and not any(isinstance(hook, CheckpointSaverHook) for hook in hooks):
            saver = CheckpointSaverHook(
                save_steps=save_steps, save_secs=None if save_steps else save_secs, clock=self._runtime.clock
            )
            self._hooks.append(saver)
        self._savers = [hook for hook in self._hooks if isinstance(hook, CheckpointSaverHook)]
        show = trainer.console if console is None else console
        self._stack = ExitStack()
        self._duties = Duties(trainer, self._directory, retention or Retention(), console=show)
        self._replica: Engine | None = None
        self._feed: Feed | None = None
        self._places: deque[Mark | None] = deque(maxlen=PLACES)
        self._training = 0
        self._preempted = False
        self._done = False
        self._stopped = ""
        self._in_hooks = False
        self._is_ending = self._is_over = False
        self._is_to_finish = False
        self._ordered: tuple[int, bool] | None = None
        self._last_step: int | None = None
        self._events: dict[Path, EventFile] = {}
        self._chiefs_events: set[Path] = set()

    # --- what a session knows

    @property
    def trainer(self) -> Trainer:
        """What is trained."""
        return self._trainer

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this task knows."""
        return self._joined().global_step

    @property
    def task(self) -> str:
        """The name of this task in the cluster, or `local`."""
        return self._joined().task

    @property
    def is_chief(self) -> bool:
        """Whether this task speaks for the job. That changes only between a step and its hooks, and at the end."""
        self._joined()
        return bool(self._trainer.had_duties)

    @property
    def in_parts(self) -> bool:
        """Whether no task has all the params, so that what needs them is done by all at the same time."""
        return self._joined().in_parts

    @property
    def checkpoint_dir(self) -> Path | None:
        """Where the checkpoints go."""
        return self._directory.path if self._directory is not None else None

    @property
    def directory(self) -> CheckpointDirectory | None:
        """The checkpoints there are."""
        return self._directory

    @property
    def saved(self) -> CheckpointStatus | None:
        """The last checkpoint of this session that was committed; on the chief."""
        return self._checkpointer.saved if self._checkpointer is not None else None

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is ordered or being written; on the chief."""
        return self._checkpointer is not None and self._checkpointer.busy

    @property
    def stopped(self) -> str:
        """Why it ends, in words; empty while it goes on."""
        return self._stopped

    @property
    def _checkpointer(self) -> Checkpointer | None:
        return self._duties.checkpointer

    @property
    def evaluates_as_it_trains(self) -> bool:
        """Whether evaluations give the metrics of training."""
        return self._trainer.evaluates_as_it_trains

    def params(self) -> PyTree:
        """The params as they now are, as NumPy arrays."""
        return self._joined().params()

    def progress(self) -> Progress | None:
        """How far the job is; `None` where it cannot be told now."""
        return self._joined().progress()

    def evaluate(self, batches: Iterable[PyTree]) -> Evaluation:
        """See `Trainer.evaluate`."""
        return self._trainer.evaluate(batches)

    def say(self, text: str) -> None:
        """A line for people."""
        self._say(text)

    def events(self, directory: str | Path | None = None) -> EventFile:
        """Where figures for TensorBoard go: one file for all hooks that write into a directory.

        (TensorBoard reads only the newest of several files of a directory that grow at the same time.)

        Args:
          directory: where; the `checkpoint_dir` when left out.

        Raises:
          YourError: there is neither.
        """
        path = self.checkpoint_dir if directory is None else Path(directory)
        if path is None:
            raise YourError("summaries need a directory: give the hook an output_dir, or the session a checkpoint_dir.")
        if path not in self._events:
            from trainband.train.event_file import EventFile  # here: few write any, and it takes a while

            events = EventFile(path, self._say, goes_on_from=self.global_step)
            self._events[path] = self._stack.enter_context(events)
            if self.is_chief:
                self._chiefs_events.add(path)
        return self._events[path]

    # --- what it does

    def should_stop(self) -> bool:
        """Whether there is nothing more to do."""
        return bool(self._stopped)

    def feed(self, batches: Iterable[PyTree], *, repeat: bool = True) -> Feed:
        """The batches, checked, prepared ahead, and beginning where the checkpoint says that this worker was.

        Args:
          batches: any iterable; `trainband.data.shared` is connected with the job here.
          repeat: begin another pass when one ends, where it can be iterated afresh.
        """
        replica = self._joined()
        bind = getattr(batches, "bind", None)
        if bind is not None:
            bind(replica.lease, self._say, self._runtime)
        luggage = replica.worker_state
        start = None
        if luggage is not None and luggage.training == self._training and luggage.position:
            start = Position.from_json(luggage.position)
        track = self._directory is not None
        self._feed = self._trainer.feed(replica, batches, repeat=repeat, start=start, track=track)
        self._places = deque(self._places, maxlen=PLACES * replica.steps_per_execution)
        self._stack.enter_context(self._feed)
        self._note_place()
        return self._feed

    def run(self, batch: PyTree) -> StepReport:
        """One step on one batch, with the hooks before and after it; several where the feed gives those of several.

        Raises:
          SystemExit: SIGTERM has ended this session after the step before, and the loop goes on all the same.
          NonFiniteGradient: the gradients stay NaN or infinite.
          PeerError: a ps cannot be reached or has died.
        """
        replica = self._joined()
        if self._preempted and self._stopped and not self._is_ending:
            self.__exit__(None, None, None)
            self._leave()
        for hook in self._hooks:
            hook.before_run(self)
        report = replica.step(batch)
        if not report.done:  # else it is looked at in the end
            self._see_to_duties(replica)
        if self._feed is not None:
            self._feed.trained(report.steps)
            self._note_place(report.steps)
        if report.worker_state is not None:
            self._leave_luggage(replica, behind=report.worker_state)
        if report.done:
            self._done = True
            reached = self._last_step is not None and replica.global_step >= self._last_step
            self._stopped = self._stopped or (DONE if reached else FINISHED)
        elif report.stopped:
            self._say(f"{replica.task} ends the training: {report.stopped}")
            self._stopped = self._stopped or report.stopped
            self._preempted = self._preempted or report.stopped.endswith(PREEMPTED)
        self._in_hooks = True
        try:
            for hook in self._hooks:
                hook.after_run(self, report)
        finally:
            self._in_hooks = False
        if self._is_to_finish:
            self._finish()
        if self._preempted:
            self._stopped = self._stopped or PREEMPTED
        return report

    def used_up(self) -> None:
        """Ends this session because there are no more batches."""
        self._stopped = self._stopped or USED_UP

    def request_stop(self, reason: str = "") -> None:
        """Ends this session after the step under way; the chief's ends the training of the whole job."""
        self._stopped = self._stopped or reason or "it was asked to stop"
        if not self.is_chief:
            return
        if self._in_hooks and self.in_parts:
            self._is_to_finish = True  # after the hooks, in which all may have something to do together
        else:
            self._finish()

    def _finish(self) -> None:
        self._is_to_finish = False
        try:
            self._joined().finish()
            self._done = True
        except Refused as exc:  # another has the chief's duties, of which this one has not heard yet
            self._say(f"{self.task} leaves the training, and cannot end it for all: {exc}")

    def settle(self) -> int:
        """The global step: what was made, and not what is hoped for of steps under way.

        A hook that has all tasks do something at the same time (`in_parts`) decides by this: the step that it was told
        of may be one too many, because the data of a task has ended, or the chief has ended the training.
        """
        replica = self._joined()
        replica.settle()
        return replica.global_step

    def save(
        self, *, at: int | None = None, wait: bool = False, metrics: Mapping[str, float] | None = None, best: str = ""
    ) -> None:
        """Chief only: has a checkpoint written while the training goes on.

        Args:
          at: the global step to save at. When left out: soon, at the next step that can be the same moment for all.
          wait: save now, and return when it is there; the others may have to wait meanwhile.
          metrics: of a validation of the params as they are now, to be noted with it.
          best: that one of the metrics by which this is the best checkpoint so far.

        Raises:
          CheckpointError: with `wait`, it could not be written.
          ClusterError: this task is not the chief, or the session has no directory.
        """
        replica = self._joined()
        if wait and replica.in_parts and (self._is_to_finish or not self._stopped):
            raise ClusterError(
                "no worker has all the variables: a checkpoint takes the next steps of all of them, and cannot be "
                "waited for during the training. Leave wait=True out."
            )
        if self._checkpointer is None:
            raise ClusterError("a checkpoint is saved by the chief, in a session that has a checkpoint_dir.")
        if best and replica.in_parts:
            raise ClusterError(
                "no worker has all the variables: a checkpoint would be of a later step than the validation that it "
                "speaks of. Let a ValidationHook save the best, in which all take part."
            )
        self._save(replica, self._checkpointer, at=at, wait=wait, metrics=metrics or {}, best=best)

    def _save(
        self,
        replica: Engine,
        checkpointer: Checkpointer,
        *,
        at: int | None = None,
        wait: bool = False,
        metrics: Mapping[str, float],
        best: str,
    ) -> None:
        """See `save`. In parts, the best is to be saved while all the others wait for what they shall give."""
        about = About(
            strategy=self._trainer.strategy_name,
            trainings=self._trainer.trainings,
            complete=self._is_last_training and (self._done or (self._stopped == USED_UP and not self._preempted)),
            last_step=self._last_step,
            metrics=metrics,
            best=(best, metrics[best]) if best else None,
        )
        if at is not None:
            checkpointer.order(replica, at, about)
            if at <= replica.global_step:
                self._leave_luggage(replica)
        elif not (wait or best or self._done):
            checkpointer.order(replica, None, about)
            self._leave_luggage(replica)
        elif best or self._ordered != (replica.global_step, about.complete):
            checkpointer.order(replica, 0, about)
            self._leave_luggage(replica)
            self._ordered = (replica.global_step, about.complete)
        else:  # it is on its way or there, as after the last validation
            checkpointer.withdraw()  # one that waits for a later step might wait for ever
        if wait:
            with replica.busy("writes a checkpoint"):
                self._await_saved(replica, checkpointer, about)

    def note_validation(self, metrics: Mapping[str, float], best: str = "") -> None:
        """Has the chief save the params that were validated just now, if they are the best so far.

        Where they are in parts, all tasks must call this at the same time: they give their parts.

        Args:
          metrics: what was found.
          best: that one of them by which these params are the best; empty if they are not.

        Raises:
          PeerError: another worker is gone.
        """
        replica = self._joined()

        def keep() -> None:
            if best and self._checkpointer is not None:
                self._save(replica, self._checkpointer, metrics=metrics, best=best)

        if not replica.in_parts:
            keep()
            return
        with replica.busy("writes a checkpoint"):
            gave = replica.gather(keep)
        if gave and self._directory is not None:
            self._leave_luggage(replica)

    # --- its life

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
        if isinstance(exc, StopIteration):  # from next(batches): the end of the data is no error
            self.used_up()
        elif exc is not None:
            self._release(kind, exc, trace)
            self._leave_anyway(exc)
            return False
        try:
            self._end()
        except CheckpointError:
            # Trained, only not saved: the job stays, so that its params can still be read and saved elsewhere.
            self._stack.__exit__(*sys.exc_info())
            raise
        except BaseException as failure:
            self._release(*sys.exc_info())
            self._leave_anyway(failure)
            raise
        self._release(None, None, None)
        # It came too late for this training, which is over; the next one shall not begin as if nothing had been asked.
        self._trainer.preempted = self._trainer.preempted or self._preempted
        return True

    def _enter(self) -> None:
        trainer = self._trainer
        self._stack.enter_context(self._duties)
        self._replica = replica = trainer.join(self._restore_from())
        self._duties.look(replica)
        if not self.is_chief:
            self._recall_trainings(replica)
        self._training, began_at = trainer.begin_training()
        self._last_step = self._limit_of(began_at)
        if not replica.begin(trainer.end_of_training(self._last_step), trainer.trainings):
            self._done, self._stopped = True, DONE
        self._last_step = self._limit_of(trainer.began_at())
        self._duties.look(replica)
        for hook in self._hooks:
            self._stack.callback(hook.close)
        self._duties.begin()
        for hook in self._hooks:
            hook.begin(self)
        self._listen_for_sigterm()

    def _listen_for_sigterm(self) -> None:
        """From now on a first SIGTERM ends this session after its step, with a last checkpoint; a second kills.

        Where that is of use: there is something to save, or others go on without this task.
        """
        cluster = self._trainer.cluster
        if self._directory is None and not (cluster is not None and cluster.spec.ps):
            return

        self._preempted = self._trainer.preempted

        def note() -> None:
            self._preempted = True
            self._joined().hasten()

        self._stack.enter_context(self._runtime.on_sigterm(note))

    def _see_to_duties(self, replica: Engine) -> None:
        if not self._duties.look(replica):
            return
        self._ordered = None
        self._last_step = self._limit_of(self._trainer.began_at())
        if not self.is_chief:
            for path in self._chiefs_events:
                self._events.pop(path).close()
            self._chiefs_events.clear()

    def _limit_of(self, began_at: int) -> int | None:
        """The global step that this training is asked to end at, if it began at this one."""
        from trainband.train.hooks.stop_at_step import StopAtStepHook

        limits = [hook for hook in self._hooks if isinstance(hook, StopAtStepHook)]
        return min((hook.last_step_from(began_at) for hook in limits), default=None)

    def _recall_trainings(self, replica: Engine) -> None:
        """Of a job that goes on from a checkpoint, whose chief has not begun yet, the checkpoint knows them."""
        if self._directory is None or self._trainer.trainings or not replica.global_step:
            return
        with contextlib.suppress(CheckpointError):  # the chief says what is wrong with it
            self._trainer.goes_on_from(Checkpoint.open(self._directory.path_of(replica.global_step)).manifest)

    def _is_saved(self, replica: Engine) -> bool:
        """Whether nothing is left to be done for a training that is over: its chief has left, and not too early."""
        if self._directory is None or not self._done:
            return False
        try:
            manifest = Checkpoint.open(self._directory.path_of(replica.global_step)).manifest
        except CheckpointError:
            return False
        return manifest.complete or len(manifest.trainings) > self._training

    def _restore_from(self) -> RestoreFrom | None:
        directory, cluster = self._directory, self._trainer.cluster
        if directory is None:
            return None
        tasks = [str(task) for task in cluster.spec.workers] if cluster is not None else ["local"]

        def luggage(checkpoint: Checkpoint) -> Mapping[int, bytes]:
            dealt = redistributed(read_worker_states(checkpoint), tasks)
            return {number: one.to_bytes() for number, one in dealt.items()}

        return RestoreFrom(candidates=directory.candidates, worker_state=luggage)

    def _end(self) -> None:
        self._is_ending = True
        replica = self._joined()
        if self._is_to_finish:
            self._finish()
        if self.is_chief or (replica.is_chief and not self._is_saved(replica)):
            self._see_to_duties(replica)
        if self.is_chief and self._done:
            self._make_anew(replica)
        if self._directory is not None:
            self._leave_luggage(replica)
        if not self._done:
            hoped_for = replica.global_step
            reason = replica.pause(self._stopped)
            if self._directory is not None and (replica.unused or replica.global_step < hoped_for):
                self._leave_luggage(replica)  # by now all is known of its last steps
            # In parts, they save together: all leave now, or none.
            if reason.endswith(PREEMPTED) if replica.in_parts else self._preempted:
                self._leave_early(replica)
            if self._checkpointer is not None:
                self._await_others(replica)  # what they still do is to be in the last checkpoint
        # In parts, all do together what there is to do, but only the chief begins what it takes to save.
        try:
            for hook in sorted(self._hooks, key=lambda hook: replica.in_parts and hook in self._savers):
                hook.end(self)
        except CheckpointError:
            replica.end()  # the others wait for what else they shall give
            raise
        replica.end()
        if self._checkpointer is not None:
            with replica.busy("writes a checkpoint"):
                self._checkpointer.finish()

    def _await_saved(self, replica: Engine, checkpointer: Checkpointer, about: About) -> None:
        """Waits for a checkpoint; where a ps dies over it, it is made once more with the one that comes back."""
        for _ in range(MORE_SAVES):
            try:
                checkpointer.finish()
                if not (self._done and replica.missing()):
                    return
            except CheckpointError as exc:
                if not isinstance(exc.__cause__, PeerError):
                    raise
            if replica.missing() and self._done:  # the question waits for whoever is away
                self._make_anew(replica)
            checkpointer.order(replica, 0, about)
            self._leave_luggage(replica)
        checkpointer.finish()

    def _make_anew(self, replica: Engine) -> None:
        """Makes the last updates once more, if a ps has died since and come back without them."""
        missing = replica.missing()
        if missing and self._feed is not None:
            self._say(f"a ps has lost its last {missing:,} updates; {replica.task} makes them anew")
            for batch in self._feed:
                self.run(batch)
                if not replica.missing():
                    return
        if replica.missing():
            raise CheckpointError(
                f"a ps has lost its last {missing:,} updates since they were made, and there are no batches left to "
                "make them anew; start the job again: it goes on from its newest checkpoint."
            )

    def _leave_early(self, replica: Engine) -> NoReturn:
        """Saves and leaves; the others go on.

        Raises:
          SystemExit: always, with the code that a shell gives to a program that SIGTERM has ended.
        """
        self._say(f"{replica.task}: {PREEMPTED}; it leaves the job at global step {replica.global_step:,}")
        try:
            if self._checkpointer is not None:
                self.save(wait=True)
        finally:
            replica.end()
        self._leave()

    def _leave(self) -> NoReturn:
        self._trainer.close()
        raise SystemExit(signals.SIGTERM_EXIT_CODE)

    def _leave_anyway(self, exc: BaseException) -> None:
        """Of a task that was asked to leave, a failure of others is no failure: they may be leaving, too.

        Raises:
          SystemExit: as `_leave_early`, if this is such a task and such a failure.
        """
        if self._preempted and isinstance(exc, PeerError):
            self._say(f"{self.task}: {PREEMPTED}; it leaves in the middle of a step: {exc}")
            raise SystemExit(signals.SIGTERM_EXIT_CODE) from exc

    def _await_others(self, replica: Engine) -> None:
        patience = Waiting(None, self._say, self._runtime.clock)
        while self._checkpointer is not None and (others := replica.at_work()):
            patience.check(f"{', '.join(others)} to end the training", "")
            for hook in self._savers:
                hook.while_waiting(self)
            self._runtime.sleep(AT_WORK_S)
            if self._preempted:
                self._ordered = None  # the others have gone on since
                self._leave_early(replica)
            self._see_to_duties(replica)

    def _release(self, kind: Any, exc: BaseException | None, trace: TracebackType | None) -> None:
        """Lets go of everything; after an error, of the job too. The first error is the one that is raised."""
        self._is_over = True
        try:
            self._stack.__exit__(kind, exc, trace)
        except Exception as failure:
            if exc is None:
                exc = failure
                raise
            self.say(f"WARNING: besides, on closing: {type(failure).__name__}: {failure}")
        finally:
            if exc is not None and not isinstance(exc, SystemExit):
                self._trainer.close(f"{type(exc).__name__}: {exc}".rstrip(": "))

    @property
    def _is_last_training(self) -> bool:
        """Whether no checkpoint speaks of a later training of the script."""
        return self._training == len(self._trainer.trainings)

    def _note_place(self, steps: int = 1) -> None:
        if self._feed is not None and self._directory is not None and steps:
            self._places.extend(self._feed.marks[-steps:])

    def _leave_luggage(self, replica: Engine, behind: int = 0) -> None:
        training, position = self._training, ""
        behind = max(behind, replica.unused)
        if self._feed is not None and self._places:
            mark = self._places[max(0, len(self._places) - 1 - behind)]
            position = self._feed.position_at(mark).to_json()
        elif replica.worker_state is not None and replica.worker_state.training >= training:
            # This training was over before it began again: what it knows of the data is what it has found.
            training, position = replica.worker_state.training, replica.worker_state.position
        replica.leave_worker_state(training, position, behind)

    def _joined(self) -> Engine:
        if self._replica is None:
            raise RuntimeError("a MonitoredSession is used inside its with statement.")
        return self._replica
