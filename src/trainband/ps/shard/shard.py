"""A shard: the values that one ps holds, in immutable versions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint.manifest import Piece
from trainband.errors import RefusalCode, Refused
from trainband.model.contents import Contents, contents_of_blocks
from trainband.model.layout import ShardLayout
from trainband.ps.program.compiled_program import Blocks, Program
from trainband.ps.program.gradients import shares_of
from trainband.ps.shard.shard_tables import ShardTables
from trainband.ps.tables.row_chunk import RowChunk
from trainband.ps.tables.saved_rows import pieces_of
from trainband.runtime import Event

_serials = itertools.count(1)


class ParamsVersion:
    """The params after `number` updates. Immutable; `readers` counts those sending or saving them.

    Each has its own `serial`, because values can be assigned without an update.
    """

    __slots__ = ("blocks", "number", "readers", "serial")

    def __init__(self, number: int, blocks: Blocks) -> None:
        self.number = number
        self.serial = next(_serials)
        self.blocks = blocks
        self.readers = 0

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The blocks as NumPy views, without a copy. Drop them before the reading ends."""
        return tuple(np.asarray(block) for block in self.blocks)


@dataclass(slots=True)
class Wanted:
    """A version that a reader waits for; it is kept for the reader once reached."""

    number: int
    reached: Event
    """Set when it is kept."""
    version: ParamsVersion | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A shard at one version, for saving. Immutable."""

    params: ParamsVersion
    state: Blocks
    tables: tuple[RowChunk, ...] = ()
    """Copies of all rows of each table."""

    @property
    def version(self) -> int:
        """How many updates it contains."""
        return self.params.number

    def pieces(self, layout: ShardLayout, state_contents: Contents) -> list[tuple[Piece, NDArray[Any]]]:
        """Every piece of it with its values, as views; a value that all slices of a variable share is one piece."""
        found: dict[str, tuple[Piece, NDArray[Any]]] = {}
        buffers = (*self.params.arrays(), *(np.asarray(leaf) for leaf in self.state))
        for pieces, values in zip((*contents_of_blocks(layout), *state_contents), buffers, strict=True):
            offset, flat = 0, values.reshape(-1)
            for piece in pieces:
                found[piece.key] = (piece, flat[offset : offset + piece.size].reshape(piece.piece_shape))
                offset += piece.size
        return list(found.values())

    def row_pieces(self, tables: ShardTables) -> list[tuple[Piece, NDArray[Any]]]:
        """The rows of all tables as pieces, with their values."""
        return [
            pair
            for table, chunk in zip(tables.tables, self.tables, strict=True)
            for pair in pieces_of(chunk, table, tables.shard)
        ]


class HeldBlocks(NamedTuple):
    """Blocks that a shard holds: its current params and state, and older ones, kept or spare. One may be in several."""

    params: Blocks
    state: Blocks
    versions: Blocks


class Shard:
    """Params, optimizer state and the program that updates them. Not thread-safe: the service holds its lock.

    Memory: the params, the optimizer state, and one older version of the params, which the next update overwrites
    once it has no readers; large params are overwritten themselves while they have none. After the first save, another
    of each: if every save took fresh memory, its page faults would cost more than the rest of the save (2.7 s for
    1.2 GB on a virtual machine that gives freed memory back to its host, else 0.3 s).
    """

    def __init__(self, layout: ShardLayout, program: Program, tables: ShardTables | None = None) -> None:
        self.layout = layout
        self.tables = ShardTables() if tables is None else tables
        self._program = program
        self._current: ParamsVersion | None = None
        self._previous: ParamsVersion | None = None
        self._state: Blocks = ()
        self._state_is_read = False
        self._spare_params: Blocks | None = None
        self._spare_state: Blocks | None = None
        self._wanted: list[Wanted] = []
        self._snapshots: list[Snapshot] = []

    @property
    def initialised(self) -> bool:
        """Whether the chief has given the first values."""
        return self._current is not None

    @property
    def version(self) -> int:
        """How many updates were applied; 0 before the first values too."""
        return self._current.number if self._current is not None else 0

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the leaves of the optimizer state."""
        return self._program.state_shapes

    @property
    def state_dtypes(self) -> tuple[np.dtype[Any], ...]:
        """Likewise, the dtypes."""
        return self._program.state_dtypes

    def state_from_wire(self, body: Sequence[NDArray[np.uint8]]) -> Blocks | None:
        """A copy of an optimizer state that arrived as raw bytes; `None` if the sizes do not fit."""
        shapes, dtypes = self._program.state_shapes, self._program.state_dtypes
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
        if [raw.nbytes for raw in body] != sizes:
            return None
        leaves = [raw.view(dtype).reshape(shape) for raw, shape, dtype in zip(body, shapes, dtypes, strict=True)]
        return self.owned(leaves)

    def owned(self, arrays: Sequence[NDArray[Any]]) -> Blocks:
        """Returns copies whose memory may be donated to the program."""
        return self._program.owned(arrays)

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, NDArray[Any]]:
        """Returns memory for a block or a leaf of the state, and a view to fill it before the shard takes it."""
        return self._program.room(shape, dtype)

    def initialise(self, blocks: Sequence[NDArray[Any]]) -> None:
        """Takes the first values. They are copied."""
        if self._current is not None:
            raise RuntimeError("this shard already has values")
        params = self.owned(blocks)
        self._state = self._program.initialise(params)
        self._current = ParamsVersion(0, params)

    def restore(self, version: int, blocks: Blocks, state: Blocks | None) -> None:
        """Takes the values of a checkpoint; without a `state`, the optimizer starts from its initial values."""
        if self._current is not None:
            raise RuntimeError("this shard already has values")
        self._state = self._program.initialise(blocks) if state is None else state
        self._current = ParamsVersion(version, blocks)

    def snapshot(self) -> Snapshot:
        """The newest version with its optimizer state, for saving; give it back with `release_snapshot`.

        The next update then makes a new state instead of writing into this one.
        """
        self._state_is_read = True
        self._snapshots.append(Snapshot(self.acquire(), self._state, self.tables.copies()))
        return self._snapshots[-1]

    def release_snapshot(self, snapshot: Snapshot) -> None:
        """Ends a save. Memory that only the snapshot still held is kept for the next one."""
        self._snapshots = [one for one in self._snapshots if one is not snapshot]
        if snapshot.state is self._state:
            self._state_is_read = False
        else:
            self._spare_state = snapshot.state
        self.recycle(snapshot.params)

    def update(self, gradient: Sequence[NDArray[Any]], scale: float = 1.0) -> None:
        """Applies one update, multiplied by `scale`. `gradient` is only read, not kept."""
        current = self.newest
        # The memory of an older version: fresh memory for 400 MB costs 0.1 to 1.1 s of page faults, and this 0.03 s.
        old, self._previous = self._previous, None
        free = old.blocks if old is not None and not old.readers else None
        overwrites = self._program.in_place and not current.readers and not self._state_is_read
        spare = None
        if overwrites:
            self._spare_params = self._spare_params or free
        elif free is not None:
            spare = free
        else:
            spare, self._spare_params = self._spare_params or self._program.room_like(current.blocks), None
        spare_state = None
        if self._state_is_read:
            spare_state, self._spare_state = self._spare_state or self._program.room_like(self._state), None
        blocks = gradient[: len(self.layout.blocks)]
        params, self._state = self._program.update(current.blocks, self._state, blocks, spare, scale, spare_state)
        if self.tables:
            self.tables.update(tuple(gradient[len(blocks) :]), current.number + 1, scale)
        self._state_is_read = False
        self._previous = None if overwrites else current
        self._current = ParamsVersion(current.number + 1, params)
        for wanted in [one for one in self._wanted if one.number <= self._current.number]:
            self._current.readers += 1
            wanted.version = self._current
            self._wanted.remove(wanted)
            wanted.reached.set()

    def set_number(self, leaf: int, value: float) -> None:
        """Sets one number of the optimizer's state, such as a learning rate.

        Raises:
          Refused: the state has no such number, or cannot hold this value; nothing has changed.
        """
        _ = self.newest  # raises before the first values
        shapes = self._program.state_shapes
        if not 0 <= leaf < len(shapes) or shapes[leaf] != ():
            raise Refused(f"leaf {leaf} of the optimizer's state is not a number.")
        dtype = self._program.state_dtypes[leaf]
        try:
            with np.errstate(over="ignore"):
                number = np.asarray(value, dtype)
        except (OverflowError, ValueError) as exc:
            raise Refused(f"leaf {leaf} of the optimizer's state is of {dtype}, which cannot be {value}.") from exc
        if not np.isfinite(number):
            raise Refused(f"leaf {leaf} of the optimizer's state is of {dtype}, which cannot be {value}.")
        if self._state_is_read:  # the state being saved will be overwritten once it is saved
            self._state, self._state_is_read = self.owned(self._state), False
        self._state = (*self._state[:leaf], *self.owned([number]), *self._state[leaf + 1 :])

    def number(self, leaf: int) -> float | None:
        """One number of the optimizer's state; `None` if it has none there, as before the first values."""
        shapes = self._program.state_shapes
        is_there = self.initialised and leaf < len(shapes) and shapes[leaf] == ()
        return float(np.asarray(self._state[leaf])) if is_there else None

    def assign(self, blocks: Sequence[NDArray[Any]], replaced: Collection[int], added: Collection[int]) -> None:
        """Assigns or adds values to slices, by their number in the layout. The version stays the same.

        Raises:
          Refused: there is no such slice; nothing has changed.
        """
        current = self.newest
        if max((*replaced, *added), default=0) >= len(self.layout.slices):
            raise Refused(f"this shard has {len(self.layout.slices)} slices, and a worker assigned to another one.")
        new = [np.array(block) for block in current.arrays()]
        values, given = self.layout.unpack(new), self.layout.unpack(blocks)
        for i in replaced:
            values[i][...] = given[i]
        for i in added:
            values[i][...] = values[i] + given[i]
        self._previous = current
        self._current = ParamsVersion(current.number, self.owned(new))

    def compensate(
        self, gradient: Sequence[NDArray[Any]], then: ParamsVersion, factor: float
    ) -> tuple[NDArray[Any], ...]:
        """G + factor * g * g * (params now - params `then`), see `Async.delay_compensation`."""
        now = self.newest
        trained = [i for i, block in enumerate(self.layout.blocks) if block.trained]
        mine, new, old = ([blocks[i] for i in trained] for blocks in (gradient, now.blocks, then.blocks))
        compensated = dict(zip(trained, self._program.compensated(mine, new, old, factor), strict=True))
        return tuple(compensated.get(i, block) for i, block in enumerate(gradient))

    def mean(self, gradients: Sequence[Sequence[NDArray[Any]]], examples: Sequence[int]) -> Sequence[NDArray[Any]]:
        """The mean of gradients, each weighted by its number of examples; see `weighted_mean`."""
        blocks = len(self.layout.blocks)
        mean = self._program.mean([gradient[:blocks] for gradient in gradients], examples)
        if not self.tables:
            return mean
        weights = shares_of(examples)
        return (*mean, *self.tables.mean([tuple(gradient[blocks:]) for gradient in gradients], weights))

    def acquire(self) -> ParamsVersion:
        """The newest version, for reading; give it back with `release`."""
        current = self.newest
        current.readers += 1
        return current

    @staticmethod
    def release(version: ParamsVersion) -> None:
        """Ends a reading."""
        version.readers -= 1

    def recycle(self, version: ParamsVersion) -> None:
        """Ends a reading that outlasts updates: memory that only it still held is kept for the next one."""
        self.release(version)
        if not version.readers and version is not self._current and version is not self._previous:
            self._spare_params = version.blocks

    def held_blocks(self) -> HeldBlocks:
        """Returns the blocks that it holds now, for the display."""
        params = () if self._current is None else self._current.blocks
        previous = () if self._previous is None else self._previous.blocks
        older = (*previous, *(self._spare_params or ()), *(self._spare_state or ()))
        for snapshot in self._snapshots:
            older += (*snapshot.params.blocks, *snapshot.state)
        mine = {id(block) for block in (*params, *self._state)}
        return HeldBlocks(params, self._state, tuple(block for block in older if id(block) not in mine))

    def want(self, number: int, reached: Event) -> Wanted:
        """Reserves a future version for a reader, who gets it from `acquire_wanted`."""
        wanted = Wanted(number, reached)
        self._wanted.append(wanted)
        return wanted

    def acquire_wanted(self, wanted: Wanted) -> ParamsVersion | None:
        """The version, as from `acquire`; `None` if it has not come, and is no longer reserved."""
        if wanted in self._wanted:
            self._wanted.remove(wanted)
        return wanted.version

    @property
    def newest(self) -> ParamsVersion:
        """The newest version, to be read under the lock. Raises `Refused` before the first values."""
        if self._current is None:
            raise Refused("this ps has no values yet: the chief has not initialised it.", RefusalCode.NOT_READY)
        return self._current
