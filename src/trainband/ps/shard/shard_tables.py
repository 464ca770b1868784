"""ShardTables: a shard's part of each table of the job, and the rows in pushes and answers.

The gradient of a push has two arrays for each table after its blocks: ids (n,) and gradients (n, dim). A
worker's question has one: ids (n,); it is answered by rows (n, dim).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.ps.tables.checks import check_distinct, checked_ids
from trainband.ps.tables.occurrences import summed, unique
from trainband.ps.tables.row_chunk import RowChunk
from trainband.ps.tables.statistics import TableStatistics
from trainband.ps.tables.store import TableStore
from trainband.rows.table import Table

Arrays = tuple[NDArray[Any], ...]
Bytes = NDArray[np.uint8]


class ShardTables:
    """Not thread-safe: the service holds its lock around every call.

    Args:
      tables: of the job.
      shard: which of how many shards this is.
    """

    def __init__(self, tables: Sequence[Table] = (), shard: tuple[int, int] = (0, 1)) -> None:
        self.tables = tuple(tables)
        self.shard = shard
        self._stores = [TableStore(table) for table in self.tables]

    def __len__(self) -> int:
        return len(self.tables)

    def gradient_from_wire(self, body: Sequence[Bytes]) -> Arrays | None:
        """The arrays of a push after its blocks, as views; `None` if their number or sizes are wrong.

        Raises:
          DataError: ids are given twice, or are not ids of the table.
        """
        if len(body) != 2 * len(self.tables):
            return None
        arrays: list[NDArray[Any]] = []
        for table, raw_ids, raw in zip(self.tables, body[::2], body[1::2], strict=True):
            if raw_ids.nbytes % 8 or raw.nbytes != raw_ids.nbytes // 8 * table.dim * 4:
                return None
            ids = checked_ids(raw_ids.view(np.uint64), table)
            gradients = raw.view(np.float32).reshape(len(ids), table.dim)
            check_distinct(ids, table)
            arrays += [ids, gradients]
        return tuple(arrays)

    def asked_from_wire(self, body: Sequence[Bytes]) -> Arrays | None:
        """The ids that a worker asks for, as views; `None` if their number or sizes are wrong.

        Raises:
          DataError: they are not ids of the table.
        """
        if len(body) not in (0, len(self.tables)) or any(raw.nbytes % 8 for raw in body):
            return None
        return tuple(
            checked_ids(raw.view(np.uint64), table) for table, raw in zip(self.tables, body, strict=bool(body))
        )

    def not_finite(self, arrays: Arrays) -> list[str]:
        """The rows of a gradient that hold NaN or infinity: one of each table."""
        return [
            f"row {ids[int(np.argmin(np.isfinite(gradients).all(1)))]} of table {table.name!r}"
            for table, ids, gradients in zip(self.tables, arrays[::2], arrays[1::2], strict=True)
            if not np.isfinite(gradients).all()
        ]

    def look_up(self, asked: Arrays) -> Arrays:
        """The rows of these ids, of each table; nothing if nothing was asked for."""
        return tuple(store.lookup(ids) for store, ids in zip(self._stores, asked, strict=bool(asked)))

    def mean(self, gradients: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
        """The weighted sum of the arrays of several pushes, in this order."""
        arrays: list[NDArray[Any]] = []
        for number in range(len(self.tables)):
            ids, places = unique(np.concatenate([one[2 * number] for one in gradients]))
            scaled = [one[2 * number + 1] * np.float32(w) for one, w in zip(gradients, weights, strict=True)]
            arrays += [ids, summed(np.concatenate(scaled), places, len(ids))]
        return tuple(arrays)

    def update(self, arrays: Arrays, step: int, scale: float) -> None:
        """Updates the rows of a push, whose updates are multiplied by `scale`."""
        for store, ids, gradients in zip(self._stores, arrays[::2], arrays[1::2], strict=True):
            store.apply(ids, gradients, step, scale=scale)

    def copies(self) -> tuple[RowChunk, ...]:
        """All rows of each table, in memory of their own."""
        return tuple(
            RowChunk.joined(list(store.snapshot()), table.dim, store.widths)
            for table, store in zip(self.tables, self._stores, strict=True)
        )

    @property
    def arrays_of_copies(self) -> int:
        """How many arrays `copies` has in all."""
        return sum(4 + len(store.widths) for store in self._stores)

    def copies_from_wire(self, body: Sequence[Bytes]) -> list[RowChunk] | None:
        """The copies that another replica sent, as views; `None` if their sizes are wrong."""
        chunks, at = [], 0
        for table, store in zip(self.tables, self._stores, strict=True):
            each = 4 + len(store.widths)
            chunk = RowChunk.from_bytes(body[at : at + each], table.dim, store.widths)
            if chunk is None:
                return None
            chunks.append(chunk)
            at += each
        return chunks

    def load(self, number: int, chunks: Iterable[RowChunk]) -> None:
        """Adds those rows of a table that belong to this shard.

        Raises:
          CheckpointError: they are not rows of such a table.
        """
        self._stores[number].load(chunks, self.shard)

    def statistics(self) -> tuple[tuple[str, TableStatistics], ...]:
        """Figures of each table, with its name."""
        return tuple((table.name, store.statistics()) for table, store in zip(self.tables, self._stores, strict=True))
