"""The rows of a table in memory: their records, the index of them, and the layout of values and optimizer state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from trainband.ps.tables.encodings import ENCODINGS, rounding_keys
from trainband.ps.tables.id_index import IdIndex
from trainband.ps.tables.records import Records
from trainband.ps.tables.row_chunk import RowChunk
from trainband.rows.optimizers import Floats, State
from trainband.rows.random_bits import mixed
from trainband.rows.table import Table

Ids = NDArray[np.uint64]
Slots = NDArray[np.int64]
Heads = NDArray[np.uint64]

_32, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


class StoredRows:
    """Finds, reads, writes, adds and removes rows.

    Args:
      table: what to store.
      directory: of the file that holds the records; memory if None.
    """

    def __init__(self, table: Table, directory: Path | None) -> None:
        self._table = table
        self._encoding = ENCODINGS[table.dtype]
        self._arrays = table.optimizer.state(table.dim)
        encoded = self._encoding.widths(table.dim)
        self._first_array = len(encoded)
        self.widths = [width for width, _ in self._arrays]
        self.records = Records([*encoded, *(4 * width for width in self.widths)], directory)
        self._index = IdIndex(self.records)
        self._key = np.uint64(xxhash.xxh3_64_intdigest(table.name.encode(), seed=table.seed % 2**64))

    @property
    def bytes(self) -> int:
        """Their memory."""
        return self.records.bytes + self._index.bytes

    def find(self, ids: Ids) -> Slots:
        """The slots of ids; -1 for an id without a row."""
        return self._index.find(ids)

    def first_values(self, ids: Ids) -> Floats:
        """Values of rows that were never trained: (n, dim)."""
        return self._table.initializer.rows(mixed(ids ^ self._key), self._table.dim)

    def first_state(self, count: int) -> State:
        """Optimizer state of rows that were never trained."""
        return tuple(np.full((count, width), value, np.float32) for width, value in self._arrays)

    def values(self, slots: Slots) -> Floats:
        """Values of rows: (n, dim)."""
        return self._encoding.read(self.records, slots)

    def state(self, slots: Slots) -> State:
        """Optimizer state of rows, in the optimizer's order."""
        return tuple(self.records.read(self._first_array + number, slots) for number in range(len(self._arrays)))

    def write(self, slots: Slots, values: Floats, state: State, heads: Heads, *, is_exact: bool = False) -> None:
        """Overwrites rows; `is_exact` values have been rounded before."""
        keys = None
        if self._table.rounding == "stochastic" and self._table.dtype != "float32" and not is_exact:
            keys = rounding_keys(heads, self.records.ids[slots])
        self._encoding.write(self.records, slots, values, keys)
        for number, array in enumerate(state):
            self.records.write(self._first_array + number, slots, array)
        self.records.heads[slots] = heads

    def add(self, ids: Ids, values: Floats, state: State, heads: Heads, *, is_exact: bool = False) -> None:
        """Adds rows of distinct ids that have none.

        Raises:
          ResourceExhausted: the system does not give the memory; nothing has changed.
        """
        slots = self.records.allocate(len(ids))
        self.records.ids[slots] = ids
        self.write(slots, values, state, heads, is_exact=is_exact)
        self._index.insert(ids, slots)

    def remove(self, slots: Slots) -> None:
        """Removes rows."""
        self._index.remove(self.records.ids[slots], slots)
        self.records.free(slots)

    def chunk(self, slots: Slots) -> RowChunk:
        """A copy of rows."""
        uses, steps = parts_of(self.records.heads[slots])
        ids, values = self.records.ids[slots], self.values(slots)
        return RowChunk(ids=ids, values=values, state=self.state(slots), uses=uses, steps=steps)


def head_of(uses: NDArray[np.uint32], steps: NDArray[np.uint32]) -> Heads:
    """Uses and last steps as they are kept."""
    return uses.astype(np.uint64) | (steps.astype(np.uint64) << _32)


def parts_of(heads: Heads) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Uses and last steps."""
    return (heads & _LOW).astype(np.uint32), (heads >> _32).astype(np.uint32)
