"""Checkpointer: the chief's thread that sees checkpoints through, from the order to the last rename."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from trainband.checkpoint import Checkpoint, CheckpointDirectory, DirectoryLock, Manifest, Retention
from trainband.errors import CheckpointError, DeadlineExceeded, DirectoryLocked, PeerError, Refused
from trainband.model.worker_state import WorkerState, write_worker_states
from trainband.ps.statistics import CheckpointStatus
from trainband.ps.worker.checkpointing import Overtaken, SavedParts
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.waiting import Say, Waiting
from trainband.strategies.engine import CheckpointSource, Saving
from trainband.version import VERSION

_logger = logging.getLogger(__name__)

POLL_S = 0.05
"""Between two looks at a checkpoint that is being written."""

BEING_WRITTEN = "the checkpoint that is being written"

WITHDRAWN_S = 60.0
"""How long a ps may take to write a part that nobody wants any more."""

GRACE_S = 5.0
"""For a checkpoint that is being written when the session ends with an error."""

RENEW_S = 4.0
"""Between two renewals of the lock, whose lease is five times as long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What a manifest says of the training.

    Attributes:
      strategy: its name.
      trainings: the global steps at which the script's trainings began.
      complete: whether the training is over.
      last_step: where it was asked to end.
      used_up: whether it is over because its batches are used up.
      metrics: of a validation of these params.
      best: (metric, value) where this is the best checkpoint so far.
    """

    strategy: str
    trainings: tuple[int, ...]
    complete: bool = False
    last_step: int | None = None
    used_up: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    best: tuple[str, float] | None = None


@dataclass(slots=True)
class _Order:
    saving: Saving
    engine: CheckpointSource
    partial: Path
    about: About
    ordered_at: float


class Checkpointer:
    """Writes a job's checkpoints and keeps their directory in order, in a thread of its own; the chief has one.

    A directory that cannot be written stops no training: that is said loudly, each save tries again, and `finish`
    raises.

    Args:
      directory: where.
      owner: the chief's name, for the lock.
      retention: which checkpoints are kept.
      say: where lines for people go.
      announce: whether each checkpoint is said.
      job: the id of the job, if it is known before `joined`.
      late: the training goes on already: a directory that another has is tried again at each save.
      landed: told of each checkpoint that was committed; called from the thread.
      runtime: this task's.
    """

    def __init__(
        self,
        directory: CheckpointDirectory,
        owner: str,
        retention: Retention,
        say: Say,
        *,
        announce: bool = True,
        job: str = "",
        late: bool = False,
        landed: Callable[[CheckpointStatus], object] = lambda _: None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._announce = announce
        self.directory = directory
        self._retention = retention
        self._say = say
        self._runtime = runtime
        self._clock = runtime.clock
        self._lock = DirectoryLock(directory.path, owner, lease_s=5 * RENEW_S, job=job, runtime=runtime)
        self._job = job
        self._late = late
        self._landed = landed
        self._locked = False
        self._heir_since: float | None = None
        self._order: _Order | None = None
        self._engine: CheckpointSource | None = None
        self._saved: CheckpointStatus | None = None
        self._failure: Exception | None = None
        self._metrics: dict[int, Mapping[str, float]] = {}
        self._wake = runtime.event()
        self._idle = runtime.event()
        self._idle.set()
        self._ended = False
        self._mutex = runtime.lock()
        self._thread = runtime.thread(self._run, "trainband-checkpoints")

    def __enter__(self) -> Checkpointer:
        """Takes the directory. Where a job has it, and it is not known yet whether this is the one, `joined` does.

        Raises:
          DirectoryLocked: another job writes there.
        """
        try:
            self._take()
        except DirectoryLocked:
            if not self._late and (self._job or not self._lock.rival_job):
                raise
        except CheckpointError as exc:
            self._warn(exc)
        self._thread.start()
        return self

    def joined(self, job: str) -> None:
        """Says which job this is, now that it is joined: one's own directory is taken over from whoever has it.

        Raises:
          DirectoryLocked: another job writes there.
        """
        self._job = job
        try:
            self._lock.name_job(job)
            if not self._locked and self._lock.rival_job:
                self._take()
        except DirectoryLocked as exc:
            if not self._locked:
                raise
            self._lose(exc)
        except CheckpointError as exc:
            self._warn(exc)

    def _take(self) -> None:
        self._lock.acquire()
        self._locked = True
        self._heir_since = None
        self.directory.sweep()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives the directory back; what is being written is given up."""
        self._finish_writing()
        self.give_up()

    def give_up(self) -> None:
        """Ends at once, and gives the directory back; what is being written is given up."""
        self._ended = True
        self._wake.set()
        self._thread.join()
        if self._order is not None:
            self._discard(self._order.partial)
        if self._locked:
            try:
                self._lock.release()
            except CheckpointError as failure:
                self._say(str(failure))

    def _finish_writing(self) -> None:
        """After an error, what is being written may still become a checkpoint."""
        order, until = self._order, self._clock() + GRACE_S
        while order is not None and self._order is order and self._clock() < until and not self._waits(order):
            self._idle.wait(POLL_S)

    @property
    def saved(self) -> CheckpointStatus | None:
        """The last one that was committed."""
        return self._saved

    @property
    def busy(self) -> bool:
        """Whether one is ordered or being written."""
        return self._order is not None

    def order(self, engine: CheckpointSource, at: int | None, about: About) -> None:
        """Has a checkpoint saved, see `CheckpointSource.save`. An order that still waits for its step is withdrawn.

        Nothing is raised: what goes wrong is said, and raised by `finish`. A task that is the chief no longer saves
        nothing, and that is no failure.
        """
        self.withdraw()
        self._engine = engine
        if not self._is_still_chief(engine):
            return
        partial: Path | None = None
        try:
            if not self._locked:
                self._take()
            partial = self.directory.begin(at or engine.global_step)
            saving = self._begun(engine, partial.absolute(), at)
        except (CheckpointError, PeerError) as exc:
            if partial is not None:
                self._discard(partial)
            if engine.is_chief:
                self._warn(exc)
            return
        self._idle.clear()
        with self._mutex:
            self._order = _Order(saving, engine, partial, about, self._clock())
        self._wake.set()

    def _is_still_chief(self, engine: CheckpointSource) -> bool:
        """Whether this one speaks for the job. An heir to the directory knows more: time is left to hear of it."""
        since = self._heir_since
        while since is not None and engine.is_chief and self._clock() - since < RENEW_S:
            self._runtime.sleep(POLL_S)
        return engine.is_chief

    def _begun(self, engine: CheckpointSource, partial: Path, at: int | None) -> Saving:
        waiting = Waiting(WITHDRAWN_S, self._say, self._clock)
        while True:
            try:
                return engine.save(partial, at)
            except Refused as exc:  # a ps had begun on the order that was withdrawn, or has heard of another chief
                if not engine.is_chief:
                    raise
                try:
                    waiting.check(BEING_WRITTEN, "look at the disk")
                except DeadlineExceeded:
                    raise exc from None
                self._runtime.sleep(POLL_S)

    def withdraw(self) -> None:
        """Waits for the one that is being written; gives up one that still waits for its step."""
        waiting = Waiting(None, self._say, self._clock)
        while (order := self._order) is not None:
            if self._mutex.acquire(timeout=POLL_S):
                try:
                    if self._order is order and self._waits(order):
                        self._done(order)
                        self._discard(order.partial)
                        return
                finally:
                    self._mutex.release()
            waiting.check(BEING_WRITTEN, "")
            self._idle.wait(POLL_S)

    def wait(self) -> None:
        """Waits until nothing is being written."""
        waiting = Waiting(None, self._say, self._clock)
        while not self._idle.wait(POLL_S):
            waiting.check(BEING_WRITTEN, "")

    def finish(self) -> None:
        """Waits for the last checkpoint.

        Raises:
          CheckpointError: it could not be written, by one who is the chief still.
        """
        self.wait()
        if self._failure is not None and (self._engine is None or self._is_still_chief(self._engine)):
            raise CheckpointError(
                f"the training is done, but its last checkpoint is not in {self.directory.path}: {self._failure}"
            ) from self._failure

    def _run(self) -> None:
        renewed = self._clock()
        while not self._ended:
            self._wake.wait(POLL_S if self.busy else RENEW_S / 2)
            self._wake.clear()
            if self._clock() - renewed >= RENEW_S:
                renewed = self._clock()
                self._renew()
            with self._mutex:
                if self._order is not None and not self._ended:
                    self._look(self._order)

    def _renew(self) -> None:
        if not self._locked:
            return
        try:
            self._lock.renew()
        except DirectoryLocked as exc:
            self._lose(exc)
        except CheckpointError as exc:
            self._warn(exc)

    def _lose(self, exc: DirectoryLocked) -> None:
        """The directory is another's now; within the job, that is no failure."""
        self._locked = False
        if not self._lock.heir:
            self._warn(exc)
            return
        self._failure = exc
        if self._heir_since is None:
            self._heir_since = self._clock()
            self._say(f"{exc} It saves from now on.")

    def _look(self, order: _Order) -> None:
        try:
            parts = order.saving.poll()
            if parts is None:
                return
            self._lock.renew()  # raises where another has taken the directory
            self._commit(order, parts)
            self._failure = None
        except DirectoryLocked as exc:
            self._discard(order.partial)
            self._lose(exc)
        except Overtaken as exc:
            self._discard(order.partial)
            self._say(str(exc))
        except Exception as exc:  # whatever it is, nobody may wait for this checkpoint for ever
            self._discard(order.partial)
            if order.engine.is_chief:
                self._warn(exc)
        self._done(order)

    def _waits(self, order: _Order) -> bool:
        try:
            return order.saving.waits()
        except PeerError:
            return True  # it cannot be seen through

    def _done(self, order: _Order) -> None:
        assert self._order is order
        self._order = None
        self._idle.set()

    def _commit(self, order: _Order, parts: SavedParts) -> None:
        states = {number: WorkerState.from_bytes(data, "ps:0") for number, data in parts.worker_state.items()}
        workers, worker_part = write_worker_states(order.partial, states)
        manifest = Manifest(
            global_step=parts.global_step,
            created_at=time.time(),
            trainband=VERSION,
            strategy=order.about.strategy,
            parts=parts.parts,
            workers=workers,
            sources=dict(parts.sources),
            trainings=order.about.trainings,
            complete=order.about.complete,
            last_step=order.about.last_step,
            used_up=order.about.used_up,
            metrics=dict(order.about.metrics or self._metrics.get(parts.global_step, {})),
            worker_part=worker_part,
        )
        self._metrics = {manifest.global_step: manifest.metrics}  # for one that takes the place of this one
        checkpoint = self.directory.commit(order.partial, manifest)
        seconds = self._clock() - (order.saving.begun_at or order.ordered_at)
        self._saved = CheckpointStatus(manifest.global_step, manifest.nbytes, seconds)
        _logger.info("committed %s: %s", checkpoint.path, self._saved)
        self._landed(self._saved)
        # Only for the display: another may be the chief by now, or the ps be gone for a moment.
        with contextlib.suppress(PeerError):
            order.engine.landed(self._saved)
        if self._announce:
            self._say(str(self._saved))
        if parts.missing:
            self._say(
                f"the checkpoint of global step {manifest.global_step} knows only older positions in the data of "
                f"{', '.join(parts.missing)}, which did not answer in time"
            )
        self._keep_order(checkpoint, order.about)

    def _keep_order(self, checkpoint: Checkpoint, about: About) -> None:
        if about.best is not None:
            self.directory.mark_best(checkpoint.global_step, *about.best)
        best = self.directory.best
        protected: Collection[int] = () if best is None else (best[0],)
        self.directory.retain(self._retention, protected)

    def _discard(self, partial: Path) -> None:
        try:
            self.directory.discard(partial)
        except CheckpointError as exc:
            self._say(str(exc))

    def _warn(self, exc: Exception) -> None:
        _logger.info("no checkpoint could be written: %s", exc)
        self._failure = exc
        self._say(f"WARNING: no checkpoint could be written; the training goes on without. {exc}")
