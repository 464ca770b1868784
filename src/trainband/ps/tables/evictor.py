"""Eviction: removes rows, with work for each update in proportion to it, never a pass over the whole table.

A hand goes round the slots. `sweep` moves it on by some slots for each updated row and removes the expired rows it
passes. `make_room` looks at several slots for each row that must go, and removes those of least use among them, like
Redis's sampled LRU and LFU.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainband.ps.tables.stored_rows import StoredRows
from trainband.rows.table import Table

_SWEPT = 2
"""Slots that are passed for each updated row."""
_SAMPLE = 8
"""Rows that are compared for each one removed to make room; Redis compares 5."""
_LEAST = 256
"""Slots that are passed at least."""


class Evictor:
    """Removes rows of a table by its rule of eviction and its largest number of rows."""

    def __init__(self, table: Table, rows: StoredRows) -> None:
        self._rule = table.evict
        self._is_frequent = table.keep == "frequent"
        self._rows = rows
        self._hand = 0
        self.evicted = 0

    def sweep(self, updated: int, step: int) -> None:
        """Removes the expired among the next slots, after `updated` rows were updated at `step`."""
        if self._rule is None:
            return
        for start, end in self._next(_SWEPT * updated + _LEAST):
            unused = step - self._rows.records.steps[start:end].astype(np.int64)
            expired = self._rule.expired(self._rows.records.uses[start:end], np.maximum(unused, 0))
            expired &= self._rows.records.is_live(start, end)
            self._remove(start + np.flatnonzero(expired))

    def make_room(self, count: int, step: int) -> int:
        """Removes up to `count` rows that were not updated at `step`; how many it has removed."""
        before = self.evicted
        for start, end in self._next(_SAMPLE * count + _LEAST):
            slots = start + np.flatnonzero(self._rows.records.is_live(start, end))
            wanted = count - (self.evicted - before)
            heads = self._rows.records.heads[slots]
            steps, uses = heads >> np.uint64(32), heads & np.uint64(0xFFFFFFFF)
            old = steps < step
            slots, steps, uses = slots[old], steps[old], uses[old]
            if len(slots) > wanted:
                rank = (uses << np.uint64(32)) | steps if self._is_frequent else (steps << np.uint64(32)) | uses
                slots = slots[np.argpartition(rank, wanted)[:wanted]]
            self._remove(slots)
        return self.evicted - before

    def _next(self, count: int) -> list[tuple[int, int]]:
        """The next slots, as one range, or as two at the end of all slots."""
        high = self._rows.records.high
        start, count = self._hand % max(high, 1), min(count, high)
        end = start + count
        self._hand = end % max(high, 1)
        return [(start, end)] if end <= high else [(start, high), (0, end - high)]

    def _remove(self, slots: NDArray[np.int64]) -> None:
        if len(slots):
            self._rows.remove(slots)
            self.evicted += len(slots)
