"""The index of a table: where the row of an id is.

Open addressing over buckets of eight entries, with double hashing: the number of buckets is prime, and an id that finds
a bucket full goes to others in strides of its own. An entry is a 16-bit tag of the id's hash and the row's slot, six
bytes together; the record in the slot holds the whole id, which settles whether a tag that fits is the right one. One
gather reads the tags of a whole bucket, and about 3 of 100 ids need a second.

Growth is incremental: a larger index is built beside the old one, some entries with each insertion, and takes its place
when it is complete. Until then the old one answers alone, so lookups pay nothing.

Everything is done by NumPy on whole arrays. Measured beside Numba (206 MB installed, 24 s for the first compilation):
both find about 20 million ids a second on one core, and NumPy releases the GIL, too.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trainband.ps.tables.records import Records
from trainband.rows.random_bits import mixed

Ids = NDArray[np.uint64]
Slots = NDArray[np.int64]
Tags = NDArray[np.uint16]

_WIDTH = 8
"""Entries of a bucket."""
_FULLEST = 0.7
"""The share of used entries at which a larger index is begun."""
_GROWTH = 1.5
_SMALLEST = 127
"""Buckets of an empty index."""
_EMPTY, _REMOVED = 0, 1
"""Tags of free entries; a search ends at a bucket that has an empty one."""
_PIECE = 16384
"""Ids that are worked on at once, so that intermediate arrays stay in the processor's cache."""
_PIECES = 32
"""An insertion is divided into pieces of at most this part of the entries, between which a larger index is built."""
_SPARE = 0.12
"""The share of entries that may be used up while a larger index is built."""
_1, _16, _32 = np.uint64(1), np.uint64(16), np.uint64(32)


class IdIndex:
    """Maps ids to the slots of their records."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._current = _Buckets(_SMALLEST)
        self._next: _Buckets | None = None
        self._built = 0

    @property
    def bytes(self) -> int:
        """The memory of the index, and of a larger one that is being built."""
        return self._current.bytes + (self._next.bytes if self._next is not None else 0)

    def find(self, ids: Ids) -> Slots:
        """The slots of ids; -1 for an id without one."""
        column = self._records.ids
        if len(ids) <= _PIECE:
            return self._current.find(ids, column)[1]
        pieces = range(0, len(ids), _PIECE)
        return np.concatenate([self._current.find(ids[start : start + _PIECE], column)[1] for start in pieces])

    def insert(self, ids: Ids, slots: Slots) -> None:
        """Adds distinct ids that are not in the index, and whose records are written."""
        start = 0
        while start < len(ids):
            end = start + self._current.entries // _PIECES
            new, places = ids[start:end], slots[start:end]
            self._current.insert(new, places)
            if self._next is not None:
                done = places < self._built
                self._next.insert(new[done], places[done])
            self._build(len(new), slots[end:])
            start = end

    def remove(self, ids: Ids, slots: Slots) -> None:
        """Removes ids, which are in the index, and whose records are not yet overwritten."""
        self._current.remove(ids, self._records.ids)
        if self._next is not None:
            done = slots < self._built
            self._next.remove(ids[done], self._records.ids)

    def _build(self, inserted: int, waiting: Slots) -> None:
        """Continues with a larger index, after `inserted` ids; those of `waiting` slots are not in the old one yet."""
        if self._next is None:
            if self._current.used <= _FULLEST * self._current.entries:
                return
            needed = max(self._current.live, 1) * _GROWTH / _FULLEST / _WIDTH
            self._next, self._built = _Buckets(next_prime(max(_SMALLEST, int(needed)))), 0
        pace = self._records.high / (_SPARE * self._current.entries)
        end = min(self._records.high, self._built + 1 + int(pace * inserted))
        is_indexed = self._records.is_live(self._built, end)
        is_indexed[waiting[(waiting >= self._built) & (waiting < end)] - self._built] = False
        slots = self._built + np.flatnonzero(is_indexed)
        self._next.insert(self._records.ids[slots], slots)
        self._built = end
        if end == self._records.high:
            self._current, self._next = self._next, None


class _Buckets:
    """An index of constant size; `live` entries have an id, `used` ones are not empty."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._tags: Tags = np.zeros((count, _WIDTH), np.uint16)
        self._whole = self._tags.view("V16").ravel()
        # The last one takes what does not fit anywhere else.
        self._slots = np.zeros(count * _WIDTH + 1, np.uint32)
        self.live = 0
        self.used = 0

    @property
    def entries(self) -> int:
        return self._count * _WIDTH

    @property
    def bytes(self) -> int:
        return self._tags.nbytes + self._slots.nbytes

    def find(self, ids: Ids, column: Ids) -> tuple[Slots, Slots]:
        """The entries and the slots of ids; -1 for an id without one."""
        buckets, tags = self._places(ids)
        rows = self._rows(buckets)
        equal = _flags(rows == tags[:, np.newaxis])
        entries = _first(equal)
        entries += buckets * _WIDTH
        slots = self._slots.take(entries).astype(np.int64)
        found = column[slots] == ids
        found &= equal != 0
        (rest,) = np.nonzero(~found)
        if rest.size:
            entries[rest] = slots[rest] = -1
            self._find_further(rest, ids[rest], column, (buckets[rest], tags[rest], rows[rest]), (entries, slots))
        return entries, slots

    def _find_further(
        self, todo: Slots, ids: Ids, column: Ids, place: tuple[Slots, Tags, Tags], found: tuple[Slots, Slots]
    ) -> None:
        """Looks at later fitting tags, then at later buckets, for ids whose first fitting tag is another id's."""
        buckets, tags, rows = place
        entries, slots = found
        equal = _flags(rows == tags[:, np.newaxis])
        equal &= equal - _1
        ends = _flags(rows == _EMPTY) != 0
        while True:
            (kept,) = np.nonzero((equal != 0) | ~ends)
            if not kept.size:
                return
            todo, ids, buckets, tags = todo[kept], ids[kept], buckets[kept], tags[kept]
            equal, ends = equal[kept], ends[kept]
            (moved,) = np.nonzero(equal == 0)
            if moved.size:
                buckets[moved] = self._following(buckets[moved], ids[moved])
                rows = self._rows(buckets[moved])
                equal[moved] = _flags(rows == tags[moved, np.newaxis])
                ends[moved] = _flags(rows == _EMPTY) != 0
            entry = _first(equal)
            entry += buckets * _WIDTH
            slot = self._slots.take(entry).astype(np.int64)
            fits = (column[slot] == ids) & (equal != 0)
            entries[todo[fits]], slots[todo[fits]] = entry[fits], slot[fits]
            equal &= equal - _1
            equal[fits], ends[fits] = 0, True

    def insert(self, ids: Ids, slots: Slots) -> None:
        """Adds distinct ids that are not here."""
        buckets, tags = self._places(ids)
        self.live += len(ids)
        while len(slots):
            rows = self._rows(buckets)
            free = _flags(rows <= _REMOVED)
            full = free == 0
            entries = _first(free)
            entries += buckets * _WIDTH
            # Several ids may choose one entry: the last one written has it, the others try again.
            entries[full] = self.entries
            self._slots[entries] = slots
            placed = self._slots.take(entries) == slots
            placed &= ~full
            taken = entries[placed]
            flat = self._tags.reshape(-1)
            self.used += int(np.count_nonzero(flat[taken] == _EMPTY))
            flat[taken] = tags[placed]
            (rest,) = np.nonzero(~placed)
            buckets, tags, slots, ids, full = buckets[rest], tags[rest], slots[rest], ids[rest], full[rest]
            buckets[full] = self._following(buckets[full], ids[full])

    def remove(self, ids: Ids, column: Ids) -> None:
        """Removes ids, all of which are here."""
        entries, _ = self.find(ids, column)
        buckets = entries // _WIDTH
        ends = _flags(self._rows(buckets) == _EMPTY) != 0
        self._tags.reshape(-1)[entries] = np.where(ends, _EMPTY, _REMOVED)
        self.live -= len(ids)
        self.used -= int(np.count_nonzero(ends))

    def _places(self, ids: Ids) -> tuple[Slots, Tags]:
        """The first bucket of each id, from its hash's upper half, and its tag, from the lower."""
        hashes = mixed(ids)
        buckets = hashes >> _32
        buckets *= np.uint64(self._count)
        buckets >>= _32
        tags = hashes.astype(np.uint16)
        np.maximum(tags, _REMOVED + 1, out=tags)
        return buckets.view(np.int64), tags

    def _following(self, buckets: Slots, ids: Ids) -> Slots:
        """The buckets that are looked at after these, which differ for ids of one bucket."""
        strides = (mixed(ids) >> _16) % np.uint64(self._count - 1) + _1
        return (buckets + strides.view(np.int64)) % self._count

    def _rows(self, buckets: Slots) -> Tags:
        return self._whole.take(buckets, mode="clip").view(np.uint16).reshape(-1, _WIDTH)


def next_prime(number: int) -> int:
    """The smallest prime that is not below a number above 2."""
    number |= 1
    while not all(number % factor for factor in range(3, math.isqrt(number) + 1, 2)):
        number += 2
    return number


def _flags(is_so: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """(n, 8) booleans as (n,) integers of which each byte is 0 or 1, the first boolean's the lowest."""
    return is_so.view("<u8").ravel()


def _first(flags: NDArray[np.uint64]) -> Slots:
    """The place of the first boolean that is true, and any if none is."""
    below = (flags ^ (flags - _1)) >> _1
    return (np.bitwise_count(below) >> np.uint8(3)).astype(np.int64)
