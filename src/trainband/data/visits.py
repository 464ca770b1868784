"""Visits: a worker's progress in its pieces, and what it has yet to report."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainband.data.pieces import Piece
from trainband.errors import DataError


@dataclass(slots=True)
class Hold:
    """A piece that this worker was given."""

    piece: Piece
    begin: int  # the piece's first unit
    stop: int
    unit: int  # all before it are trained on
    row: int = 0  # and this many rows of it


Mark = tuple[Hold, tuple[int, int]]
"""Progress (unit, row) in a piece."""


@dataclass(slots=True)
class Given:
    """A batch: its number of examples, and the progress of its pieces once it is trained on."""

    examples: int
    marks: list[Mark]


class Visits:
    """A worker's progress in its pieces. It has no lock; its owner does."""

    def __init__(self) -> None:
        """Holds nothing."""
        self._batches = 0  # trained on
        self._given: deque[Given] = deque()  # but not trained on
        self._holds: dict[Piece, Hold] = {}
        self._finished: dict[Piece, None] = {}  # but not reported
        self._claims: tuple[tuple[int, int, int], ...] = ()  # of a state, but not reported
        self._skip: dict[tuple[int, int], int] = {}  # finished rows of files, from a state

    @property
    def awaited(self) -> bool:
        """Whether a batch was given but not trained on."""
        return bool(self._given)

    @property
    def finished(self) -> tuple[Piece, ...]:
        """The pieces that are trained on completely but not reported."""
        return tuple(self._finished)

    @property
    def progress(self) -> tuple[tuple[int, int, int], ...]:
        """The progress in each piece that is held, or was held according to a state that has not been reported yet."""
        return self._claims or tuple((*hold.piece, hold.unit - hold.begin) for hold in self._holds.values())

    def reported(self, finished: Iterable[Piece]) -> None:
        """Records that all held pieces were reported, and that these are finished."""
        self._claims = ()
        for piece in finished:
            self._finished.pop(piece, None)

    def receive(self, piece: Piece, begin: int, start: int, stop: int) -> Hold:
        """Adds a piece.

        Args:
          piece: which.
          begin: its first unit.
          start: the first unit that is not trained on.
          stop: its end.
        """
        row = self._skip.pop((piece[0], start), 0)
        hold = self._holds[piece] = Hold(piece, begin, stop, start, row)
        return hold

    def record_given(self, given: Given) -> None:
        """Records that a batch was given."""
        self._given.append(given)

    def trained(self, count: int) -> int:
        """Records that the first `count` given batches have been trained on; returns how many examples are new."""
        examples = 0
        while self._batches < count and self._given:
            given = self._given.popleft()
            self._batches += 1
            examples += given.examples
            self._advance(given.marks)
        return examples

    def trained_all(self) -> int:
        """Records that all given batches have been trained on; returns how many examples are new."""
        return self.trained(self._batches + len(self._given))

    def record_dropped(self, marks: Iterable[Mark]) -> None:
        """Records that the rows before these marks will be in no batch."""
        if self._given:
            self._given[-1].marks.extend(marks)
        else:
            self._advance(marks)

    def state(self) -> dict[str, Any]:
        """Returns the progress, in plain values."""
        rows = {(hold.piece[0], hold.unit): hold.row for hold in self._holds.values() if hold.row}
        return {
            "progress": [list(claim) for claim in self.progress],
            "rows": [[*where, row] for where, row in (self._skip | rows).items()],
            "finished": [list(piece) for piece in self._finished],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Visits:
        """Restores a state; it claims the pieces, and has been given none yet.

        Raises:
          DataError: it is not such a state.
        """
        visits = cls()
        try:
            visits._claims = tuple((int(e), int(p), int(n)) for e, p, n in state["progress"])
            visits._skip = {(int(epoch), int(unit)): int(row) for epoch, unit, row in state["rows"]}
            visits._finished = dict.fromkeys((int(epoch), int(piece)) for epoch, piece in state["finished"])
        except (KeyError, TypeError, ValueError) as exc:
            raise DataError(f"this is not a position in shared data: {type(exc).__name__}: {exc}.") from exc
        return visits

    def _advance(self, marks: Iterable[Mark]) -> None:
        for hold, (unit, row) in marks:
            hold.unit, hold.row = unit, row
            if unit == hold.stop and self._holds.get(hold.piece) is hold:
                del self._holds[hold.piece]
                self._finished[hold.piece] = None
