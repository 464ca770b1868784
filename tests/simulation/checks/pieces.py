"""Shared data: no piece is with two live workers, and each is visited once unless its holder was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.simulation.checks.succession import forgetful
from tests.simulation.history import (
    Data,
    Ended,
    Leased,
    Out,
    PieceKey,
    Promoted,
    Record,
    Reported,
    Restored,
    Terms,
    Trained,
    Violation,
)

SHARED = "piece with two workers"
AGAIN = "piece done twice"
NEVER = "piece never done"
EXAMPLES = "examples trained on twice"

OFFICE = 0
"""The shard whose ps keeps the ledger, and whose word on who lives counts."""


class _Pieces:
    """Who holds what."""

    def __init__(self) -> None:
        self.holder: dict[PieceKey, tuple[int, str]] = {}
        self.doubtful: set[PieceKey] = set()
        self.touched: set[PieceKey] = set()
        self.reports: Counter[PieceKey] = Counter()
        self.visits: Counter[tuple[int, int]] = Counter()
        self.leased_at: dict[PieceKey, int] = {}
        self.reported_at: dict[PieceKey, int] = {}

    def forget(self) -> None:
        """Who held what nobody knows any more."""
        self.leased_at, self.reported_at = {}, {}
        self.holder.clear()
        self.doubtful |= self.touched

    def undo(self, position: int) -> None:
        """Nobody knows of what came after this record."""
        for piece, at in list(self.leased_at.items()):
            if at > position:
                del self.leased_at[piece]
                self.holder.pop(piece, None)
        for piece, at in list(self.reported_at.items()):
            if at > position:
                del self.reported_at[piece]
                self.reports[piece] -= 1

    def lost(self, worker: int) -> None:
        for piece in [piece for piece, (holder, _) in self.holder.items() if holder == worker]:
            del self.holder[piece]
            self.doubtful.add(piece)


def broken_leases(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:  # noqa: ARG001 - as all checks
    """Checks the leases as they are given, and the visits at the end."""
    pieces = _Pieces()
    ended = not any(isinstance(record, Ended) and record.unfinished for record in history)
    office, lost = "", forgetful(history)
    for record in history:
        if isinstance(record, Leased | Reported) and record.seat != office:
            continue  # of one that does not know yet that it is succeeded
        match record:
            case Leased(piece=piece, worker=worker, incarnation=incarnation):
                holder = pieces.holder.get(piece)
                if holder is not None and holder[0] == worker and holder[1] != incarnation:
                    pieces.doubtful.add(piece)  # what a worker had goes to its heir
                elif holder is not None and holder != (worker, incarnation):
                    text = f"{piece} goes to worker number {worker}, while worker number {holder[0]} holds it"
                    yield Violation(record.at, SHARED, text)
                pieces.holder[piece] = worker, incarnation
                pieces.touched.add(piece)
                pieces.leased_at[piece] = record.position
            case Out(shard=shard, seat=seat, worker=worker, why=why):
                if (shard, seat) == (OFFICE, office) and why != "paused":
                    pieces.lost(worker)
            case Promoted(at=at, shard=shard, seat=seat, position=position) if shard == OFFICE:
                office = seat
                if (at, shard) in lost:
                    pieces.forget()
                else:
                    pieces.undo(position)
            case Restored(shard=shard, seat=seat) if shard == OFFICE:
                office = seat
                pieces.forget()
            case Trained(piece=piece, start=start, stop=stop):
                for example in range(start, stop):
                    pieces.visits[piece[0], example] += 1
            case Reported(piece=piece):
                pieces.reports[piece] += 1
                pieces.reported_at[piece] = record.position
                pieces.holder.pop(piece, None)
                if pieces.reports[piece] > 1 and piece not in pieces.doubtful:
                    yield Violation(record.at, AGAIN, f"{piece} is reported done {pieces.reports[piece]} times")
            case Data() if ended:
                yield from _visits(record, pieces)


def _visits(data: Data, pieces: _Pieces) -> Iterator[Violation]:
    for piece, (start, stop) in data.pieces.items():
        if not pieces.reports[piece]:
            yield Violation(data.at, NEVER, f"{piece} was never reported done")
        visits = [pieces.visits[piece[0], example] for example in range(start, stop)]
        if min(visits) < 1:
            yield Violation(data.at, NEVER, f"examples of {piece} were never trained on: {visits}")
        if max(visits) > 1 and piece not in pieces.doubtful:
            yield Violation(data.at, EXAMPLES, f"examples of {piece} were trained on {visits} times")
