"""The checkpoints of a training run.

`SessionCheckpoints` decides when to save and what the manifest records; the thread of `Checkpointer` orders the
checkpoint from the engine, polls until all parts are written, and commits it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from trainband.checkpoint import CheckpointDirectory, DirectoryLock, Manifest, Retention
from trainband.errors import CheckpointError, ClusterError, DeadlineExceeded, DirectoryLocked, PeerError, Refused
from trainband.job.checkpoints import CheckpointStatus, Overtaken, SavedParts, Saving, TrainingRecord
from trainband.job.engine import Engine, Peers
from trainband.model.variables import PyTree
from trainband.model.worker_state import WorkerState, write_worker_states
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.waiting import Say, Waiting
from trainband.train.data_position import DataPosition
from trainband.train.job import Job
from trainband.train.lost_updates import LostUpdates
from trainband.train.stop import Stop
from trainband.version import VERSION

_logger = logging.getLogger(__name__)

POLL_S = 0.05
"""Between two polls of a checkpoint that is being written."""

BEING_WRITTEN = "the checkpoint that is being written"

WITHDRAWN_S = 60.0
"""How long a ps may take to write a part of a checkpoint that was withdrawn."""

GRACE_S = 5.0
"""Grace period for a checkpoint that is being written when the session ends with an error."""

RENEW_S = 4.0
"""Between two renewals of the lock, whose lease is five times as long."""

MORE_SAVES = 3
"""How often a checkpoint that the training waits for is retried if ps die while it is written."""


@dataclass(slots=True)
class _Order:
    saving: Saving
    engine: Engine
    partial: Path
    training: TrainingRecord
    ordered_at: float
    withdrawn: bool = False
    """Whether it is abandoned if it still waits for its step."""


class Checkpointer:
    """Writes checkpoints and maintains their directory, in its own thread; the chief has one.

    A directory that cannot be written does not stop the training: a warning is printed, each save tries again, and
    `finish` raises.

    Args:
      directory: where.
      owner: the chief's name, for the lock.
      retention: which checkpoints are kept.
      say: receives lines for people.
      job: the id of the job, if it is known before `joined`.
      late: the training is under way: if another job holds the directory, each save tries again.
      on_commit: called from the thread with each committed checkpoint.
      runtime: this task's.
    """

    def __init__(
        self,
        directory: CheckpointDirectory,
        owner: str,
        retention: Retention,
        say: Say,
        *,
        job: str = "",
        late: bool = False,
        on_commit: Callable[[CheckpointStatus], object] = lambda _: None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self.directory = directory
        self._retention = retention
        self._say = say
        self._runtime = runtime
        self._lock = DirectoryLock(directory.path, owner, lease_s=5 * RENEW_S, job=job, runtime=runtime)
        self._job = job
        self._late = late
        self._on_commit = on_commit
        self._succeeded_at: float | None = None
        """When another task of the job was found to hold the directory, if it still does."""
        self._order: _Order | None = None
        self._engine: Engine | None = None
        self._saved: CheckpointStatus | None = None
        self._failure: Exception | None = None
        self._metrics: dict[int, Mapping[str, float]] = {}
        self._wake = runtime.event()
        self._idle = runtime.event()
        self._idle.set()
        self._ended = False
        self._thread = runtime.thread(self._run, "trainband-checkpoints")

    def __enter__(self) -> Checkpointer:
        """Takes the directory. If a job holds it that may turn out to be this one, `joined` takes it.

        Raises:
          DirectoryLocked: another job writes there.
        """
        try:
            self._acquire()
        except DirectoryLocked:
            if not self._late and (self._job or not self._lock.rival_job):
                raise
        except CheckpointError as exc:
            self._warn(exc)
        self._thread.start()
        return self

    def joined(self, job: str) -> None:
        """Sets the id of the joined job; takes the directory over from another task of the job.

        Raises:
          DirectoryLocked: another job writes there.
        """
        held = self._lock.held
        try:
            self._lock.name_job(job)
            if not held and self._lock.rival_job:
                self._acquire()
        except DirectoryLocked as exc:
            if not held:
                raise
            self._lose(exc)
        except CheckpointError as exc:
            self._warn(exc)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Returns the directory. After an error, a checkpoint that is being written may still be committed."""
        self._withdraw()
        self._idle.wait(GRACE_S)
        self.abandon()

    def abandon(self) -> None:
        """Ends at once, and returns the directory; a checkpoint that is being written is abandoned."""
        self._ended = True
        self._wake.set()
        self._thread.join()
        if self._order is not None:
            self._discard(self._order.partial)
        try:
            if self._lock.held:
                self._lock.release()
        except CheckpointError as failure:
            self._say(str(failure))

    @property
    def saved(self) -> CheckpointStatus | None:
        """The last committed checkpoint."""
        return self._saved

    @property
    def busy(self) -> bool:
        """Whether one is ordered or being written."""
        return self._order is not None

    def order(self, engine: Engine, at: int | None, training: TrainingRecord) -> None:
        """Orders a checkpoint, see `Checkpoints.save`. An order that still waits for its step is withdrawn.

        It raises nothing: failures are printed, and raised by `finish`. A task that is no longer the chief saves
        nothing, which is not a failure.
        """
        self.withdraw()
        self._engine = engine
        if not self._is_still_chief(engine):
            return
        partial: Path | None = None
        try:
            if not self._lock.held:
                self._acquire()
            partial = self.directory.create_partial(at or engine.steps.global_step)
            saving = self._start_saving(engine, partial.absolute(), at)
        except (CheckpointError, PeerError) as exc:
            if partial is not None:
                self._discard(partial)
            if engine.peers.is_chief:
                self._warn(exc)
            return
        self._idle.clear()
        self._order = _Order(saving, engine, partial, training, self._runtime.clock())
        self._wake.set()

    def withdraw(self) -> None:
        """Waits for a checkpoint that is being written; abandons one that still waits for its step."""
        self._withdraw()
        self.wait()

    def wait(self) -> None:
        """Waits until nothing is being written."""
        waiting = Waiting(None, self._say, self._runtime.clock)
        while not self._idle.wait(POLL_S):
            waiting.check(BEING_WRITTEN, "")

    def finish(self) -> None:
        """Waits for the last checkpoint.

        Raises:
          CheckpointError: it could not be written, and this task is still the chief.
        """
        self.wait()
        if self._failure is not None and (self._engine is None or self._is_still_chief(self._engine)):
            raise CheckpointError(
                f"the training is done, but its last checkpoint is not in {self.directory.path}: {self._failure}"
            ) from self._failure

    def _is_still_chief(self, engine: Engine) -> bool:
        """Whether this task is still the chief. If another has taken the directory, it waits until it must know."""
        clock, since = self._runtime.clock, self._succeeded_at
        while since is not None and engine.peers.is_chief and clock() - since < RENEW_S:
            self._runtime.sleep(POLL_S)
        return engine.peers.is_chief

    def _start_saving(self, engine: Engine, partial: Path, at: int | None) -> Saving:
        waiting = Waiting(WITHDRAWN_S, self._say, self._runtime.clock)
        while True:
            try:
                return engine.checkpoints.save(partial, at)
            except Refused as exc:  # a ps had begun the withdrawn order, or has another chief
                if not engine.peers.is_chief:
                    raise
                try:
                    waiting.check(BEING_WRITTEN, "check the disk")
                except DeadlineExceeded:
                    raise exc from None
                self._runtime.sleep(POLL_S)

    def _withdraw(self) -> None:
        if (order := self._order) is not None:
            order.withdrawn = True
            self._wake.set()

    def _run(self) -> None:
        clock = self._runtime.clock
        renewed = clock()
        while not self._ended:
            self._wake.wait(POLL_S if self.busy else RENEW_S / 2)
            self._wake.clear()
            if clock() - renewed >= RENEW_S:
                renewed = clock()
                self._renew()
            if self._order is not None and not self._ended:
                self._poll(self._order)

    def _poll(self, order: _Order) -> None:
        try:
            parts = order.saving.poll()
            if parts is not None:
                self._lock.renew()  # raises if another task has taken the directory
                self._commit(order, parts)
                self._failure = None
            elif order.withdrawn and order.saving.waits:
                self._discard(order.partial)
            else:
                return
        except DirectoryLocked as exc:
            self._discard(order.partial)
            self._lose(exc)
        except Overtaken as exc:
            self._discard(order.partial)
            self._say(str(exc))
        except Exception as exc:  # any error: no task may wait for this checkpoint for ever
            self._discard(order.partial)
            if order.engine.peers.is_chief:
                self._warn(exc)
        self._order = None
        self._idle.set()

    def _commit(self, order: _Order, parts: SavedParts) -> None:
        states = {number: WorkerState.from_bytes(data, "ps:0") for number, data in parts.worker_state.items()}
        workers, worker_part = write_worker_states(order.partial, states)
        training = order.training
        manifest = Manifest(
            global_step=parts.global_step,
            created_at=time.time(),
            trainband=VERSION,
            strategy=training.strategy,
            parts=parts.parts,
            workers=workers,
            sources=dict(parts.sources),
            trainings=training.trainings,
            complete=training.complete,
            last_step=training.last_step,
            used_up=training.used_up,
            metrics=dict(training.metrics or self._metrics.get(parts.global_step, {})),
            worker_part=worker_part,
        )
        self._metrics = {manifest.global_step: manifest.metrics}  # for one that replaces it
        checkpoint = self.directory.commit(order.partial, manifest)
        seconds = self._runtime.clock() - (order.saving.started_at or order.ordered_at)
        self._saved = status = CheckpointStatus(manifest.global_step, manifest.nbytes, seconds)
        _logger.info("committed %s: %s", checkpoint.path, status)
        # Only for the display: another task may be the chief by now, or the ps may be gone for a moment.
        with contextlib.suppress(PeerError):
            order.saving.committed(status)
        self._on_commit(status)
        if parts.missing:
            self._say(
                f"the checkpoint of global step {manifest.global_step:,} has only older data positions of "
                f"{', '.join(parts.missing)}, which did not answer in time"
            )
        if training.best is not None:
            self.directory.mark_best(checkpoint.global_step, *training.best)
        best = self.directory.best
        protected: Collection[int] = () if best is None else (best[0],)
        self.directory.retain(self._retention, protected)

    def _acquire(self) -> None:
        self._lock.acquire()
        self._succeeded_at = None
        self.directory.sweep()

    def _renew(self) -> None:
        try:
            if self._lock.held:
                self._lock.renew()
        except DirectoryLocked as exc:
            self._lose(exc)
        except CheckpointError as exc:
            self._warn(exc)

    def _lose(self, exc: DirectoryLocked) -> None:
        """Handles that another task holds the directory; within the job, that is not a failure."""
        if not self._lock.successor:
            self._warn(exc)
            return
        self._failure = exc
        if self._succeeded_at is None:
            self._succeeded_at = self._runtime.clock()
            self._say(f"{exc} That task now writes the checkpoints.")

    def _discard(self, partial: Path) -> None:
        try:
            self.directory.discard(partial)
        except CheckpointError as exc:
            self._say(str(exc))

    def _warn(self, exc: Exception) -> None:
        _logger.info("no checkpoint could be written: %s", exc)
        self._failure = exc
        self._say(f"WARNING: could not write a checkpoint; training continues without it. {exc}")


class SessionCheckpoints:
    """The checkpoints of one session: when to order them, and how they describe the training.

    Args:
      job: this task's part in the job.
      position: in the data, saved in each checkpoint.
      stop: of the session.
      lost: repeats updates that a ps has lost.
    """

    def __init__(self, job: Job, position: DataPosition, stop: Stop, lost: LostUpdates) -> None:
        self.checkpointer: Checkpointer | None = None
        """Writes them: set by the chief's `Duties` if there is a directory."""
        self._job = job
        self._position = position
        self._stop = stop
        self._lost = lost
        self._ordered: tuple[int, bool] | None = None

    def forget(self) -> None:
        """Forgets the last order: it may be another chief's, or others may have passed it."""
        self._ordered = None

    def store_worker_state(self, engine: Engine, behind: int = 0) -> None:
        """Stores this task's worker state for the checkpoint, as of `behind` steps ago."""
        self._position.store(engine, self._job.trainings.number, behind)

    def save(
        self,
        engine: Engine,
        run: Callable[[PyTree], object],
        *,
        at: int | None = None,
        wait: bool = False,
        metrics: Mapping[str, float] | None = None,
        best: str = "",
    ) -> None:
        """Implements `MonitoredSession.save`.

        `run`: trains on a batch, if updates must be repeated.
        """
        if wait and engine.values.in_parts and (self._stop.is_deferred or not self._stop.reason):
            raise ClusterError(
                "no worker has all the variables, so a checkpoint needs the next steps of all of them and cannot be "
                "waited for during the training; leave wait=True out."
            )
        if self.checkpointer is None:
            raise ClusterError("only the chief saves checkpoints, in a session with a checkpoint_dir.")
        if best and engine.values.in_parts:
            raise ClusterError(
                "no worker has all the variables, so a checkpoint would be of a later step than its validation; let a "
                "ValidationHook save the best checkpoint, with all workers."
            )
        clock = self._job.runtime.clock
        begin = clock()
        training = self._order(engine, self.checkpointer, at=at, wait=wait, metrics=metrics or {}, best=best)
        if wait:
            with engine.peers.busy("writes a checkpoint"):
                self._await(engine, self.checkpointer, training, run)
        engine.steps.times.saving += clock() - begin

    def record_validation(self, engine: Engine, metrics: Mapping[str, float], best: str) -> None:
        """Implements `MonitoredSession.record_validation`."""

        def order_if_best() -> None:
            if best and self.checkpointer is not None:
                self._order(engine, self.checkpointer, metrics=metrics, best=best)

        if not engine.values.in_parts:
            order_if_best()
            return
        with engine.peers.busy("writes a checkpoint"):
            gave = engine.checkpoints.gather(order_if_best)
        if gave and self._position.is_saved:
            self.store_worker_state(engine)

    def finish(self, peers: Peers) -> None:
        """Waits for the last checkpoint.

        Raises:
          CheckpointError: it could not be written.
        """
        if self.checkpointer is not None:
            with peers.busy("writes a checkpoint"):
                self.checkpointer.finish()

    def _order(
        self,
        engine: Engine,
        checkpointer: Checkpointer,
        *,
        at: int | None = None,
        wait: bool = False,
        metrics: Mapping[str, float],
        best: str,
    ) -> TrainingRecord:
        trainings, stop = self._job.trainings, self._stop
        is_end = stop.is_complete or (at is not None and at == stop.last_step)
        training = TrainingRecord(
            strategy=self._job.strategy_name,
            trainings=trainings.starts,
            complete=trainings.is_last and is_end,
            last_step=stop.last_step,
            # Later runs may continue with more batches only if the used ones are known.
            used_up=stop.is_used_up and self._position.feed is not None,
            metrics=metrics,
            best=(best, metrics[best]) if best else None,
        )
        if at is not None:
            checkpointer.order(engine, at, training)
            self._ordered = (at, training.complete)
            if at <= engine.steps.global_step:
                self.store_worker_state(engine)
        elif not (wait or best or stop.done):
            checkpointer.order(engine, None, training)
            self.store_worker_state(engine)
        elif best or not self._has_saved(checkpointer, engine.steps.global_step, complete=training.complete):
            checkpointer.order(engine, 0, training)
            self.store_worker_state(engine)
            self._ordered = (engine.steps.global_step, training.complete)
        return training

    def _has_saved(self, checkpointer: Checkpointer, step: int, *, complete: bool) -> bool:
        """Whether the checkpoint of this step exists, as after the last validation; waits while it is written."""
        if self._ordered != (step, complete):
            return False
        checkpointer.withdraw()  # one that waits for a later step might wait for ever
        return checkpointer.saved is not None and checkpointer.saved.global_step == step

    def _await(
        self, engine: Engine, checkpointer: Checkpointer, training: TrainingRecord, run: Callable[[PyTree], object]
    ) -> None:
        """Waits for a checkpoint; if a ps dies meanwhile, repeats it with the one that comes back."""
        for _ in range(MORE_SAVES):
            try:
                checkpointer.finish()
                if not (self._stop.done and engine.steps.missing()):
                    return
            except CheckpointError as exc:
                if not isinstance(exc.__cause__, PeerError):
                    raise
            if self._stop.done and engine.steps.missing():  # the call waits for absent ps
                self._lost.make(engine, run)
            checkpointer.order(engine, 0, training)
            self.store_worker_state(engine)
        checkpointer.finish()
