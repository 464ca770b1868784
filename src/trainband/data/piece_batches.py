"""Batches of the examples read from pieces, filled across pieces, files and epochs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.data.batches import epoch_order
from trainband.data.pieces import Piece, SourceSettings
from trainband.data.readers import Chunk, Reader, Rows, cut
from trainband.data.visits import Given, Hold, Mark
from trainband.errors import DataError


class PieceBatches:
    """Cuts the rows read from pieces into batches.

    Args:
      reader: how pieces are read.
      settings: of the data.
      batch_size: examples a batch.
      name: of the data.
    """

    def __init__(self, reader: Reader, settings: SourceSettings, batch_size: int, name: str) -> None:
        """Reads nothing yet."""
        self._reader = reader
        self._settings = settings
        self._batch_size = batch_size
        self._name = name
        self._order: tuple[int, NDArray[np.intp]] = (-1, np.zeros(0, np.intp))
        self._hold: Hold | None = None  # being read
        self._chunks: Iterator[Chunk] = iter(())
        self._barren = 0  # pieces since the last one with an example in it
        self._parts: deque[tuple[Hold, Chunk, int]] = deque()  # read, with how many rows are in batches
        self._rows = 0  # read but in no batch
        self._ready: Iterator[Any] = iter(())
        self._made: deque[Given] = deque()  # one for each of `_ready`

    @property
    def rows(self) -> int:
        """How many examples were read but are in no batch."""
        return self._rows

    @property
    def is_empty(self) -> bool:
        """Whether all examples that were read are in batches that were taken. Other threads may ask."""
        return not (self._rows or self._parts or self._made)

    def start_piece(self, hold: Hold) -> None:
        """Starts reading a piece, once `next` has nothing left of those before it."""
        epoch = hold.piece[0]
        if self._order[0] != epoch:
            settings = self._settings
            self._order = epoch, epoch_order(settings.examples, settings.seed, epoch, shuffle=settings.shuffle)
        self._chunks = self._reader.read(hold.unit, hold.stop, self._order[1])
        self._hold = hold
        self._barren += 1

    def next(self) -> tuple[Any] | None:
        """Returns the next batch, which `pop_contents` then describes; `None` if too little was read for one.

        Raises:
          DataError: `load` returned something other than a batch, or no example in a whole epoch of pieces.
        """
        if self._barren > self._settings.pieces:
            raise DataError(f"load returned no example for any of {self._barren} pieces of {self._name!r}.")
        for batch in self._ready:
            return (batch,)
        self._ready = iter(())  # frees its memory for the next ones
        size = self._batch_size
        wanted = size * self._reader.batches_at_a_time
        while self._rows < wanted and self._read():
            pass
        if self._rows < size:
            return None
        self._make([size] * (min(self._rows, wanted) // size))
        return (next(self._ready),)

    def pop_contents(self) -> Given:
        """Returns the contents of the last batch of `next`."""
        return self._made.popleft()

    def make_short(self) -> None:
        """Makes a short batch of the remaining rows, for `next`."""
        self._make([self._rows])

    def drop_rest(self) -> list[Mark]:
        """Drops the rows that are in no batch; returns how far their pieces are without them."""
        marks = {hold.piece: (hold, chunk.mark(chunk.count)) for hold, chunk, _ in self._parts}
        self._parts.clear()
        self._rows = 0
        return list(marks.values())

    def _make(self, sizes: Sequence[int]) -> None:
        """Makes batches of these sizes from the rows read."""
        parts: list[Rows] = []
        for size in sizes:
            marks: dict[Piece, Mark] = {}
            missing = size
            while missing or (self._parts and self._parts[0][1].count == self._parts[0][2]):
                hold, chunk, used = self._parts.popleft()
                some = min(missing, chunk.count - used)
                if some:
                    parts.append(cut(chunk.rows, used, used + some))
                missing -= some
                used += some
                marks[hold.piece] = hold, chunk.mark(used)
                if used < chunk.count:
                    self._parts.appendleft((hold, chunk, used))
            self._made.append(Given(size, list(marks.values())))
        self._rows -= sum(sizes)
        self._ready = self._reader.batches(parts, sizes)

    def _read(self) -> bool:
        """Reads one chunk; returns False if the current piece is finished, or there is none."""
        hold, chunk = self._hold, next(self._chunks, None)
        if hold is None or chunk is None:
            self._hold = None
            return False
        used = 0
        if not chunk.units and chunk.unit == hold.unit and chunk.row < hold.row:
            used = min(chunk.count, hold.row - chunk.row)  # only after `set_state`, in a partly finished file
        if chunk.count > used:
            self._barren = 0
        if chunk.count > used or chunk.last:
            self._parts.append((hold, chunk, used))
        self._rows += chunk.count - used
        return True
