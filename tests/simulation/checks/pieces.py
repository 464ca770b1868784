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
    Taught,
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
        self.given: dict[PieceKey, tuple[int, str]] = {}
        """Who was the last to get it."""
        self.doubtful: set[PieceKey] = set()
        self.touched: set[PieceKey] = set()
        self.reports: Counter[PieceKey] = Counter()
        self.visits: Counter[tuple[int, int]] = Counter()
        self.apart: dict[str, list[Leased | Reported]] = {}
        """What seats have noted that held the shard in their own eyes alone; it counts once they do hold it again."""
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
                if piece in self.leased_at:
                    self.holder[piece] = self.given[piece]

    def lease(self, record: Leased) -> Iterator[Violation]:
        piece, worker, incarnation = record.piece, record.worker, record.incarnation
        holder = self.holder.get(piece)
        if holder is not None and holder[0] == worker and holder[1] != incarnation:
            self.doubtful.add(piece)  # what a worker had goes to its heir
        elif holder is not None and holder != (worker, incarnation):
            text = f"{piece} goes to worker number {worker}, while worker number {holder[0]} holds it"
            yield Violation(record.at, SHARED, text)
        self.holder[piece] = self.given[piece] = worker, incarnation
        self.touched.add(piece)
        self.leased_at[piece] = record.position

    def report(self, record: Reported) -> Iterator[Violation]:
        piece = record.piece
        self.reports[piece] += 1
        self.reported_at[piece] = record.position
        self.holder.pop(piece, None)
        if self.reports[piece] > 1 and piece not in self.doubtful:
            yield Violation(record.at, AGAIN, f"{piece} is reported done {self.reports[piece]} times")

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
            pieces.apart.setdefault(record.seat, []).append(record)  # it does not know yet that it is succeeded
            continue
        match record:
            case Leased():
                yield from pieces.lease(record)
            case Out(shard=shard, seat=seat, worker=worker, why=why):
                if (shard, seat) == (OFFICE, office) and why != "paused":
                    pieces.lost(worker)
            case Promoted(at=at, shard=shard, seat=seat, position=position) if shard == OFFICE:
                office = seat
                own = pieces.apart.pop(seat, [])
                pieces.apart.clear()
                if (at, shard) in lost:
                    pieces.forget()
                else:
                    pieces.undo(min([position, *(one.position - 1 for one in own)]))
                for one in own:
                    yield from pieces.lease(one) if isinstance(one, Leased) else pieces.report(one)
            case Taught(shard=shard, seat=seat) if shard == OFFICE:
                pieces.apart.pop(seat, None)  # it has given that up
            case Restored(shard=shard, seat=seat) if shard == OFFICE:
                office = seat
                pieces.forget()
            case Trained(piece=piece, start=start, stop=stop):
                for example in range(start, stop):
                    pieces.visits[piece[0], example] += 1
            case Reported():
                yield from pieces.report(record)
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
