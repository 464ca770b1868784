"""ShardSaver: writes and reads one shard's part of a checkpoint, in a thread beside the training.

The service holds its lock around every call; the threads take it briefly at their end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainband.checkpoint import Checkpoint, Part, write_part
from trainband.checkpoint.manifest import DTYPES
from trainband.checkpoint.reader import fill
from trainband.errors import CheckpointError, DamagedCheckpoint, Refused, TrainbandError
from trainband.model.contents import Contents, contents_of_blocks
from trainband.ps.program.compiled_program import Blocks
from trainband.ps.shard.allowed_directories import AllowedDirectories
from trainband.ps.shard.shard import Shard, Snapshot
from trainband.ps.tables.row_chunk import RowChunk
from trainband.ps.tables.saved_rows import read_shard, saved_shards
from trainband.runtime import SYSTEM, Lock, Runtime, Thread
from trainband.runtime.logs import task_logger
from trainband.wire.messages import calls as m

ASKED_FOR_S = 3.0
"""Seconds within which the chief asks for a written part: it asks once all ps have written theirs."""


@dataclass(slots=True)
class _Saving:
    """One part of one checkpoint.

    Attributes:
      needs: for each worker in the job at this version, how many of its pushes had been seen.
      worker_state: (pushes, data) of each worker, as known at this version or received for it since; anything later is
        for later checkpoints.
      ended_at: when it was written or failed.
    """

    order: m.Save
    phase: str = m.ARMED
    version: int = 0
    failure: str = ""
    part: Part | None = None
    needs: Mapping[int, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    worker_state: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    ended_at: float = 0.0


@dataclass(slots=True)
class _Reading:
    """A checkpoint being read; `blocks` and `state` are there when it is done."""

    order: m.Restore
    done: bool = False
    failure: str = ""
    damaged: bool = False
    blocks: Blocks = ()
    state: Blocks | None = None
    tables: Sequence[Sequence[RowChunk]] = ()


class _Superseded(Exception):
    """A newer order has replaced the one being read."""


class ShardSaver:
    """Saves and restores one shard.

    Args:
      state_contents: the pieces in each leaf of its optimizer state.
      ps: its number, and how many there are.
      seen: for each worker in the job now, by number, how many of its pushes were seen; empty on all but ps:0,
        which alone keeps worker state.
      sources: the present shared data sources, as text.
    """

    def __init__(
        self,
        shard: Shard,
        state_contents: Contents,
        ps: tuple[int, int],
        lock: Lock,
        *,
        directories: AllowedDirectories,
        runtime: Runtime = SYSTEM,
        seen: Callable[[], Mapping[int, int]],
        sources: Callable[[], Mapping[str, str]],
    ) -> None:
        self._shard = shard
        self._state_contents = state_contents
        self._ps = ps
        self._log = task_logger(__name__, f"ps:{ps[0]}")
        self._lock = lock
        self._directories = directories
        self._runtime = runtime
        self._seen = seen
        self._sources = sources
        self._saving: _Saving | None = None
        self._reading: _Reading | None = None
        self._reads = False
        self._worker_state: dict[int, tuple[int, bytes]] = {}
        self._threads: list[Thread] = []

    def save(self, order: m.Save) -> m.SaveState:
        """Records an order and follows it at once if its version is reached. Repeated orders change nothing.

        Raises:
          Refused: the part of another checkpoint is being written.
        """
        saving = self._saving
        if saving is None or saving.order.token != order.token:
            if saving is not None and saving.phase == m.WRITING:
                raise Refused(f"ps:{self._ps[0]} is still writing its part of the last checkpoint.")
            self._saving = saving = _Saving(order)
            self.after_update()
        return m.SaveState(saving.phase, saving.version, saving.failure, saving.part)

    def after_update(self) -> None:
        """Starts to write if an order waits for the shard's present version."""
        saving = self._saving
        if saving is None or saving.phase != m.ARMED or self._shard.version < saving.order.at:
            return
        snapshot = self._shard.snapshot()
        saving.phase, saving.version = m.WRITING, snapshot.version
        saving.needs, saving.sources = dict(self._seen()), dict(self._sources())
        saving.worker_state = dict(self._worker_state)
        self._start(lambda: self._write(saving, snapshot), "save")

    def state(self, question: m.SaveQuestion, live: Collection[int], name: Callable[[int], str]) -> m.SaveState:
        """The progress of the save with this token; `live` are the workers in the job now."""
        saving = self._saving
        if saving is None or saving.order.token != question.token:
            return m.SaveState(m.FORGOTTEN)
        awaited = tuple(name(worker) for worker in saving.needs if worker in live and self.wanted(worker))
        return m.SaveState(
            saving.phase,
            saving.version,
            saving.failure,
            saving.part,
            awaited,
            {worker: data for worker, (_, data) in saving.worker_state.items()} if question.worker_state else {},
            dict(saving.sources),
        )

    def wanted(self, worker: int) -> int:
        """How many of this worker's pushes are in a checkpoint that waits for its worker state; 0 if none waits."""
        saving = self._saving
        if saving is None:
            return 0
        (kept, _), needed = saving.worker_state.get(worker, (0, b"")), saving.needs.get(worker, 0)
        return needed if kept < needed else 0

    def is_busy(self, live: Collection[int]) -> bool:
        """Whether a checkpoint is under way: being written or read, or waiting for the state of one of these workers or
        (as far as is known here) for the chief to ask for it. One that is ordered ahead can be ordered again.
        """
        saving = self._saving
        if saving is None:
            return self._reading is not None
        return (
            saving.phase == m.WRITING
            or (saving.phase != m.ARMED and self._runtime.clock() - saving.ended_at < ASKED_FOR_S)
            or any(map(self.wanted, live))
        )

    def store_worker_state(self, worker_state: m.LeftWorkerState) -> None:
        """Keeps a worker's state for its return."""
        kept = (worker_state.sequence, worker_state.data)
        self._worker_state[worker_state.worker] = kept
        if self._saving is not None and self.wanted(worker_state.worker):
            self._saving.worker_state[worker_state.worker] = kept

    def all_worker_states(self) -> dict[int, tuple[int, bytes]]:
        """The kept (pushes, data) of each worker."""
        return dict(self._worker_state)

    def replace_worker_states(self, worker_state: Mapping[int, tuple[int, bytes]]) -> None:
        """Replaces its worker state by another saver's."""
        self._worker_state = dict(worker_state)

    def worker_state_of(self, worker: int) -> m.WorkerStateAnswer:
        """The state kept for a worker."""
        return m.WorkerStateAnswer(self._worker_state.get(worker, (0, b""))[1])

    def _write(self, saving: _Saving, snapshot: Snapshot) -> None:
        index, count = self._ps
        part, failure = None, ""
        try:
            directory = self._directories.admit(saving.order.directory)
            if not directory.is_dir():
                raise CheckpointError(
                    f"ps:{index} on {self._runtime.host} does not find {saving.order.directory}, which the chief made; "
                    "use a checkpoint directory that the chief and all ps share."
                )
            file = f"part-{index:05}-of-{count:05}.safetensors"
            pieces = snapshot.pieces(self._shard.layout, self._state_contents)
            pieces += snapshot.row_pieces(self._shard.tables)
            try:
                part = write_part(directory, file, ps=index, version=saving.version, pieces=pieces)
            finally:
                del pieces  # views of memory that may be written once it is given back
        except Exception as exc:  # in any case the chief must learn of it, and the params be given back
            failure = _in_words(exc)
        self._log.info("wrote version %d to %s: %s", saving.version, saving.order.directory, failure or "done")
        with self._lock:
            self._shard.release_snapshot(snapshot)
            saving.part, saving.failure = part, failure
            saving.phase, saving.ended_at = m.FAILED if failure else m.WRITTEN, self._runtime.clock()

    def restore(self, order: m.Restore) -> m.RestoreState:
        """Starts to read the shard's part of a checkpoint. Repeated orders change nothing.

        A new order replaces the last one. One thread reads one checkpoint at a time: it gives up the old one after its
        present tensor, then follows the newest order.
        """
        if self._reading is None or self._reading.order.token != order.token:
            self._reading = _Reading(order)
            if not self._reads:
                self._reads = True
                self._start(self._read_orders, "restore")
        return self.restore_state(order.token)

    def restore_state(self, token: str) -> m.RestoreState:
        """The progress of the reading."""
        reading = self._reading
        if reading is None or reading.order.token != token:
            return m.RestoreState(done=True, forgotten=True)
        return m.RestoreState(reading.done, reading.failure, reading.damaged)

    def adopt(self, order: m.Adopt) -> None:
        """Gives the shard the values read. Repeated orders change nothing.

        Raises:
          Refused: nothing was read.
        """
        if self._shard.initialised:
            return
        reading = self._reading
        if reading is None or reading.order.token != order.token or not reading.done or reading.failure:
            raise Refused(f"ps:{self._ps[0]} has read no checkpoint to adopt.")
        self._shard.restore(order.version, reading.blocks, reading.state)
        for number, chunks in enumerate(reading.tables):
            self._shard.tables.load(number, chunks)
        self._log.info("restored version %d from %s", order.version, reading.order.directory)
        self._worker_state = {worker: (0, data) for worker, data in order.worker_state.items()}
        self.forget_reading()

    def forget_reading(self) -> None:
        """Frees unused values that were read: as much memory as the shard itself has."""
        self._reading = None

    def _read_orders(self) -> None:
        """Follows the newest order until none is left."""
        while True:
            with self._lock:
                reading = self._reading
                if reading is None or reading.done:
                    self._reads = False
                    return
            self._read(reading)

    def _read(self, reading: _Reading) -> None:
        failure, damaged = "", False
        blocks: Blocks = ()
        state: Blocks | None = None
        tables: list[list[RowChunk]] = []
        try:
            layout, shapes = self._shard.layout, self._shard.state_shapes
            checkpoint = Checkpoint.open(self._directories.admit(reading.order.directory), follow=False)
            flat = [(block.size,) for block in layout.blocks]
            dtypes = [DTYPES[block.dtype] for block in layout.blocks]
            blocks = self._buffers(reading, checkpoint, contents_of_blocks(layout), flat, dtypes)
            if reading.order.optimizer:
                dtypes = list(self._shard.state_dtypes)
                state = self._buffers(reading, checkpoint, self._state_contents, shapes, dtypes)
            for table in self._shard.tables.tables:
                shards = saved_shards(checkpoint, table.name, self._ps)
                tables.append([read_shard(checkpoint, shard, table, self._ps[0]) for shard in shards])
        except _Superseded:
            failure = "an order to read another checkpoint came meanwhile"
        except DamagedCheckpoint as exc:
            failure, damaged = str(exc), True
        except Exception as exc:  # in any case the chief must learn of it
            failure = f"ps:{self._ps[0]} on {self._runtime.host}: {_in_words(exc)}"
        with self._lock:
            reading.blocks, reading.state, reading.tables = blocks, state, tables
            reading.failure, reading.damaged, reading.done = failure, damaged, True

    def _buffers(
        self,
        reading: _Reading,
        checkpoint: Checkpoint,
        contents: Contents,
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[np.dtype[Any]],
    ) -> Blocks:
        """Reads into the memory that the shard will have: copies of 4 GB would take 1.2 s and 4 GB more."""
        blocks = []
        for pieces, shape, dtype in zip(contents, shapes, dtypes, strict=True):
            if self._reading is not reading:
                raise _Superseded
            block, values = self._shard.room(shape, dtype)
            fill(checkpoint, pieces, values, prefer_ps=self._ps[0])
            blocks.append(block)
        return tuple(blocks)

    def _start(self, work: Callable[[], None], name: str) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = self._runtime.thread(work, f"trainband-{name}")
        self._threads.append(thread)
        thread.start()

    def close(self, grace_s: float) -> None:
        """Gives threads under way `grace_s` each to end. Called without the service's lock."""
        for thread in self._threads:
            thread.join(grace_s)


def _in_words(exc: Exception) -> str:
    if isinstance(exc, TrainbandError | OSError) and str(exc):
        return str(exc)
    return f"{type(exc).__name__}: {exc}".rstrip(": ")
