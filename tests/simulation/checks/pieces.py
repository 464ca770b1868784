"""Shared data: no piece is with two live workers, and each is visited once unless its holder was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.simulation.checks.failover import forgetful
from tests.simulation.history import (
    Data,
    Ended,
    GivenBack,
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


Noted = Leased | Reported | GivenBack | Out


class _Pieces:
    """Who holds what."""

    def __init__(self) -> None:
        self.holder: dict[PieceKey, tuple[int, str]] = {}
        self.given: dict[PieceKey, tuple[int, str]] = {}
        """Who was the last to get it."""
        self.doubtful: set[PieceKey] = set()
        self.touched: set[PieceKey] = set()
        self.reports: Counter[PieceKey] = Counter()
        self.reporters: dict[PieceKey, int] = {}
        self.visits: Counter[tuple[int, int]] = Counter()
        self.apart: dict[str, list[Noted]] = {}
        """What replicas noted that held the shard in their own eyes alone; it counts once they hold it again."""
        self.leased_at: dict[PieceKey, int] = {}
        self.reported_at: dict[PieceKey, int] = {}
        self.given_back: dict[PieceKey, tuple[int, tuple[int, str]]] = {}
        """By which record, and by whom."""

    def forget(self) -> None:
        """Who held what nobody knows any more."""
        self.leased_at, self.reported_at, self.given_back = {}, {}, {}
        self.holder.clear()
        self.doubtful |= self.touched

    def undo(self, position: int) -> None:
        """Nobody knows of what came after this record."""
        for piece, at in list(self.leased_at.items()):
            if at > position:
                del self.leased_at[piece]
                self.holder.pop(piece, None)
        for piece, (at, holder) in list(self.given_back.items()):
            if at > position:
                del self.given_back[piece]
                if piece in self.leased_at:
                    self.holder[piece] = holder
        for piece, at in list(self.reported_at.items()):
            if at > position:
                del self.reported_at[piece]
                self.reports[piece] -= 1
                if piece in self.leased_at:
                    self.holder[piece] = self.given[piece]

    def record(self, record: Noted) -> Iterator[Violation]:
        """What whoever holds the office has noted."""
        match record:
            case Leased():
                yield from self.lease(record)
            case Reported():
                yield from self.report(record)
            case GivenBack(worker=worker, incarnation=incarnation, position=position):
                for piece in [piece for piece, holder in self.holder.items() if holder == (worker, incarnation)]:
                    self.given_back[piece] = position, self.holder.pop(piece)
            case Out(worker=worker):
                self.lost(worker)

    def lease(self, record: Leased) -> Iterator[Violation]:
        piece, worker, incarnation = record.piece, record.worker, record.incarnation
        holder = self.holder.get(piece)
        if holder is not None and holder[0] == worker and holder[1] != incarnation:
            self.doubtful.add(piece)  # what a worker had goes to its successor
        elif holder is not None and holder != (worker, incarnation):
            text = f"{piece} goes to worker number {worker}, while worker number {holder[0]} holds it"
            yield Violation(record.at, SHARED, text)
        self.holder[piece] = self.given[piece] = worker, incarnation
        self.touched.add(piece)
        self.leased_at[piece] = record.position

    def report(self, record: Reported) -> Iterator[Violation]:
        piece = record.piece
        if self.reports[piece] and piece not in self.holder and self.reporters.get(piece) == record.worker:
            return  # one that resumes from the state that it had left says it once more
        self.reporters[piece] = record.worker
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
    noted: list[Noted] = []
    """By whoever holds the office, or by those before, as far as it knows."""
    for record in history:
        if isinstance(record, Leased | Reported | GivenBack | Out):
            if isinstance(record, Out) and (record.shard != OFFICE or record.why == "paused"):
                continue
            if record.replica != office:
                pieces.apart.setdefault(record.replica, []).append(record)  # it does not know yet that it is succeeded
                continue
            noted.append(record)
            yield from pieces.record(record)
            continue
        match record:
            case Promoted(at=at, shard=shard, replica=replica, position=position) if shard == OFFICE:
                before, office = office, replica
                own = pieces.apart.pop(replica, [])
                pieces.apart.clear()
                known = min([position, *(one.position - 1 for one in own if not isinstance(one, Out))])
                kept = _until(noted, known)
                if before != replica:
                    pieces.apart[before] = noted[len(kept) :]
                noted = kept + own
                if (at, shard) in lost:
                    pieces.forget()
                else:
                    pieces.undo(known)
                for one in own:
                    yield from pieces.record(one)
            case Taught(shard=shard, replica=replica) if shard == OFFICE:
                pieces.apart.pop(replica, None)  # it has given that up
            case Restored(shard=shard, replica=replica) if shard == OFFICE:
                office = replica
                noted.clear()
                pieces.forget()
            case Trained(piece=piece, start=start, stop=stop):
                for example in range(start, stop):
                    pieces.visits[piece[0], example] += 1
            case Data() if ended:
                yield from _visits(record, pieces)


def _until(noted: Sequence[Noted], position: int) -> list[Noted]:
    """Those until this record."""
    later = (i for i, one in enumerate(noted) if not isinstance(one, Out) and one.position > position)
    return list(noted[: next(later, len(noted))])


def _visits(data: Data, pieces: _Pieces) -> Iterator[Violation]:
    for piece, (start, stop) in data.pieces.items():
        if not pieces.reports[piece]:
            yield Violation(data.at, NEVER, f"{piece} was never reported done")
        visits = [pieces.visits[piece[0], example] for example in range(start, stop)]
        if min(visits) < 1:
            yield Violation(data.at, NEVER, f"examples of {piece} were never trained on: {visits}")
        if max(visits) > 1 and piece not in pieces.doubtful:
            yield Violation(data.at, EXAMPLES, f"examples of {piece} were trained on {visits} times")
