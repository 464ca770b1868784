"""Approximate counts of ids in constant memory.

Source: Estan, Varghese 2002 (conservative update); Einziger, Friedman, Manes 2017, TinyLFU (halving of counts).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainband.rows.random_bits import mixed

_DEPTH = 4
_SALT = np.uint64(0xE7037ED1A0B428DB)
_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


class CountSketch:
    """A count-min sketch of one-byte counters; without halving, a count is never too low.

    Args:
      counters: their number, of all hashes together.
      window: additions after which every counter has been halved once, some with each addition.
    """

    def __init__(self, counters: int, window: int) -> None:
        self._width = -(-counters // _DEPTH)
        self._counters = np.zeros(_DEPTH * self._width, np.uint8)
        self._window = window
        self._added = 0

    @property
    def bytes(self) -> int:
        """Its memory."""
        return self._counters.nbytes

    def add(self, ids: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Counts distinct ids once each; the counts after it."""
        hashes = mixed(ids ^ _SALT)
        first, second = hashes & _LOW, hashes >> _32
        places = []
        for row in range(_DEPTH):
            place = first + np.uint64(row) * second
            place &= _LOW
            place *= np.uint64(self._width)
            place >>= _32
            place += np.uint64(row * self._width)
            places.append(place.view(np.int64))
        counts: NDArray[np.uint8] = np.minimum.reduce([self._counters[place] for place in places])
        counts += counts < 255
        for place in places:
            np.maximum.at(self._counters, place, counts)
        self._halve(len(ids))
        return counts

    def _halve(self, added: int) -> None:
        total = len(self._counters)
        start = self._added * total // self._window
        self._added += added
        end = self._added * total // self._window
        self._added %= self._window
        while start < end:
            stop = min(end, (start // total + 1) * total)
            self._counters[start % total : (stop - 1) % total + 1] >>= 1
            start = stop
