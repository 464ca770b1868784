"""The store of a table: one ps's rows of one table, looked up and updated by id.

It has no threads and takes no locks: one caller at a time. Its state depends on the sequence of updates alone, apart
from the figures of `statistics`, so that a standby that applies the same updates holds the same rows; a lookup changes
nothing unless it inserts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import ResourceExhausted
from trainband.ps.tables.admission import admitter
from trainband.ps.tables.checks import check_update, checked_ids
from trainband.ps.tables.evictor import Evictor
from trainband.ps.tables.row_chunk import RowChunk
from trainband.ps.tables.sharding import shard_of
from trainband.ps.tables.statistics import TableStatistics
from trainband.ps.tables.stored_rows import Ids, Slots, StoredRows, head_of, parts_of
from trainband.rows.optimizers import Floats, State
from trainband.rows.table import Table

_log = logging.getLogger(__name__)

MOST_USES = np.uint32(0xFFFFFFFF)
_BLOCK_VALUES = 65536
"""Values of the rows that are updated at once: rows, state, gradients and intermediate results stay in the cache."""


class TableStore:
    """The rows of a table on one ps.

    Args:
      table: what to store.
      directory: of a file that holds the rows instead of memory, and that `close` deletes.
    """

    def __init__(self, table: Table, directory: Path | None = None) -> None:
        self._table = table
        self._rows = StoredRows(table, directory)
        self._admitter = admitter(table.admit)
        self._evictor = Evictor(table, self._rows)
        self._block = max(256, min(8192, _BLOCK_VALUES // table.dim))
        self._step = 0
        self._is_out_of_memory = False
        self._hits = self._misses = 0
        self._admitted = self._refused = self._refused_for_room = 0

    def __enter__(self) -> TableStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the memory back, and deletes the file, if there is one."""
        self._rows.records.close()

    def lookup(self, ids: NDArray[Any], *, insert: bool = False) -> Floats:
        """The values of rows, in the order of their ids; of an id without one, its first values.

        Args:
          ids: (n,) int64 or uint64; may repeat.
          insert: offers ids without a row to the rule of admission, as an update would.

        Returns:
          (n, dim) float32.

        Raises:
          DataError: the ids have another type or shape, or are not ids of the table.
        """
        ids = checked_ids(ids, self._table)
        if insert:
            unknown = np.unique(ids[self._rows.find(ids) < 0])
            unknown = unknown[self._offered(unknown)]
            for start in range(0, len(unknown), self._block):
                self._insert(unknown[start : start + self._block], None, self._step)
        slots = self._rows.find(ids)
        (missing,) = np.nonzero(slots < 0)
        self._hits += len(ids) - len(missing)
        self._misses += len(missing)
        slots[missing] = 0  # a record that exists, even if it holds no row
        values = self._rows.values(slots)
        values[missing] = self._rows.first_values(ids[missing])
        return values

    @property
    def widths(self) -> Sequence[int]:
        """Values a row of each array of the optimizer's state."""
        return self._rows.widths

    def apply(self, ids: NDArray[Any], gradients: Floats, step: int, *, scale: float = 1.0) -> None:
        """Updates rows; an id without one gets it if the rule of admission says so, and its gradient is dropped if not.

        Args:
          ids: (n,) int64 or uint64, each once.
          gradients: (n, dim) float32, summed for each id.
          step: at which they are applied, at least 0; rows remember the latest.
          scale: of the change of the values.

        Raises:
          DataError: ids, gradients or step are not as described; nothing has changed.
          NonFiniteGradient: a gradient contains NaN or infinity; nothing has changed.
        """
        ids = checked_ids(ids, self._table)
        check_update(ids, gradients, step, self._table)
        self._step = max(self._step, step)
        slots = self._rows.find(ids)
        for start in range(0, len(ids), self._block):
            end = start + self._block
            some, given = slots[start:end], gradients[start:end]
            known = some >= 0
            if not known.all():
                some, given = some[known], given[known]
            self._update(some, given, step, scale)
        (missing,) = np.nonzero(slots < 0)
        missing = missing[self._offered(ids[missing])]
        for start in range(0, len(missing), self._block):
            new = missing[start : start + self._block]
            self._insert(ids[new], gradients[new], step, scale)
        self._evictor.sweep(len(ids), self._step)

    def snapshot(self, *, changed_since: int = 0, slots: int = 65536) -> Iterator[RowChunk]:
        """Copies of all rows, some at a time; updates may be applied between them.

        Each row is copied as it is when its chunk is made. A row that is removed and made again meanwhile may be in two
        chunks, of which the later is the newer; one that is made meanwhile may be missing. Removed rows are not listed,
        and counts for admission are not saved.

        Args:
          changed_since: leaves out rows whose last update was at an earlier step.
          slots: looked at for each chunk, which has at most as many rows.
        """
        start = 0
        while start < self._rows.records.high:
            end = min(start + slots, self._rows.records.high)
            live = self._rows.records.is_live(start, end)
            if changed_since:
                live &= self._rows.records.steps[start:end] >= changed_since
            found = start + np.flatnonzero(live)
            start = end
            if found.size:
                yield self._rows.chunk(found)

    def load(self, chunks: Iterable[RowChunk], shard: tuple[int, int] = (0, 1)) -> None:
        """Adds rows of a snapshot, or overwrites those that exist; rules of admission do not apply.

        Args:
          chunks: of a snapshot, made by any number of shards.
          shard: which of how many this store is: rows of others are left out.

        Raises:
          CheckpointError: the rows are not of this table's dim or optimizer; rows of earlier chunks are loaded.
          ResourceExhausted: the memory does not suffice.
        """
        number, count = shard
        for chunk in chunks:
            chunk.check(self._table.name, self._table.dim, self._rows.widths)
            (own,) = np.nonzero(shard_of(chunk.ids, count) == number)
            if own.size:
                self._step = max(self._step, int(chunk.steps[own].max()))
            for start in range(0, len(own), self._block):
                self._load(chunk, own[start : start + self._block])

    def statistics(self) -> TableStatistics:
        """Figures of the store."""
        return TableStatistics(
            rows=self._rows.records.live,
            bytes=self._rows.bytes + self._admitter.bytes,
            hits=self._hits,
            misses=self._misses,
            admitted=self._admitted,
            refused=self._refused,
            refused_for_room=self._refused_for_room,
            evicted=self._evictor.evicted,
        )

    def _update(self, slots: Slots, gradients: Floats, step: int, scale: float) -> None:
        if not len(slots):
            return
        uses, steps = parts_of(self._rows.records.heads[slots])
        uses += uses < MOST_USES
        values, state = self._rows.values(slots), self._rows.state(slots)
        values, state = self._updated(values, state, gradients, uses, scale)
        self._rows.write(slots, values, state, head_of(uses, np.maximum(steps, np.uint32(step))))

    def _offered(self, ids: Ids) -> NDArray[np.bool_]:
        """Which ids without a row are admitted."""
        admitted = self._admitter.admitted(ids, self._step)
        self._refused += len(ids) - int(np.count_nonzero(admitted))
        return admitted

    def _updated(
        self, values: Floats, state: State, gradients: Floats, uses: NDArray[np.uint32], scale: float
    ) -> tuple[Floats, State]:
        if scale == 1.0:
            return self._table.optimizer.update(values, state, gradients, uses)
        old = values.copy()
        values, state = self._table.optimizer.update(values, state, gradients, uses)
        values -= old
        values *= np.float32(scale)
        values += old
        return values, state

    def _insert(self, ids: Ids, gradients: Floats | None, step: int, scale: float = 1.0) -> None:
        room = len(ids)
        if self._table.max_rows is not None:
            room = self._table.max_rows - self._rows.records.live
            if room < len(ids):
                room += self._evictor.make_room(len(ids) - room, step)
            room = min(room, len(ids))
        try:
            self._add(ids[:room], gradients if gradients is None else gradients[:room], step, scale)
            self._is_out_of_memory = False
        except ResourceExhausted as error:
            room = 0
            if not self._is_out_of_memory:
                _log.error(
                    "table %r refuses new rows, and training continues without them: %s", self._table.name, error
                )
            self._is_out_of_memory = True
        self._admitted += room
        self._refused_for_room += len(ids) - room

    def _add(self, ids: Ids, gradients: Floats | None, step: int, scale: float) -> None:
        values, state = self._rows.first_values(ids), self._rows.first_state(len(ids))
        uses, steps = np.zeros(len(ids), np.uint32), np.full(len(ids), step, np.uint32)
        if gradients is not None:
            uses += np.uint32(1)
            values, state = self._updated(values, state, gradients, uses, scale)
        self._rows.add(ids, values, state, head_of(uses, steps))

    def _load(self, chunk: RowChunk, places: Slots) -> None:
        ids = chunk.ids[places]
        heads = head_of(chunk.uses[places], chunk.steps[places])
        values, state = chunk.values[places], tuple(array[places] for array in chunk.state)
        slots = self._rows.find(ids)
        old, new = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        self._rows.write(slots[old], values[old], tuple(array[old] for array in state), heads[old], is_exact=True)
        if self._table.max_rows is not None and self._rows.records.live + len(new) > self._table.max_rows:
            excess = self._rows.records.live + len(new) - self._table.max_rows
            excess -= self._evictor.make_room(excess, self._step + 1)
            new = new[excess:]
        self._rows.add(ids[new], values[new], tuple(array[new] for array in state), heads[new], is_exact=True)
