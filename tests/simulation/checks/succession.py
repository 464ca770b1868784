"""Of two seats one holds the shard at a time, and what a worker knows of is never lost while a seat has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulation.history import Answered, Broken, Died, Promoted, Record, Restored, Secured, Terms, Violation

TWO = "acknowledged by one that is succeeded"
GONE = "values given up that a seat had"
FAILED = "a seat's thread has failed"


class _Reign:
    """Who holds a shard, from when."""

    def __init__(self, began: Restored | Promoted) -> None:
        self.seat = began.seat
        self.lineage = began.lineage if isinstance(began, Promoted) else ""
        self.began_at = began.position if isinstance(began, Promoted) else 0
        """The last record of what it began with."""
        self.holders = frozenset({began.seat})
        """Who has all that workers know of."""
        self._known = self.began_at

    def note(self, record: Answered | Secured) -> None:
        """A worker knows of more, or a seat has more."""
        if isinstance(record, Answered):
            self.lineage, self._known, self.holders = record.lineage, record.position, record.holders
        elif record.position >= self._known:
            self.holders |= {record.seat}


def forgetful(history: Sequence[Record]) -> set[tuple[float, int]]:
    """When which shard went to a seat that had not all of what workers knew of, because all that had it are dead.

    So it is if one seat has gone on alone, by the word of the arbiter, and dies: the other one, which was cut off,
    finds a new process and does not know.
    """
    reigns: dict[int, _Reign] = {}
    dead: set[str] = set()
    found: set[tuple[float, int]] = set()
    if not any(isinstance(record, Promoted) for record in history):
        return found
    for record in history:
        match record:
            case Died(seat=seat):
                dead.add(seat)
            case Restored(shard=shard):
                reigns[shard] = _Reign(record)
            case Promoted(at=at, shard=shard):
                if shard in reigns and reigns[shard].holders <= dead:
                    found.add((at, shard))
                reigns[shard] = _Reign(record)
            case Answered(shard=shard, seat=by) | Secured(shard=shard, by=by) if by == reigns[shard].seat:
                reigns[shard].note(record)
    return found


def broken_successions(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Checks every answer, and every shard that was given values of a checkpoint."""
    reigns: dict[int, _Reign] = {}
    dead: set[str] = set()
    if terms.single:
        for at, shard in sorted(forgetful(history)):
            yield Violation(at, GONE, f"one takes shard {shard} over that has not all")
    for record in history:
        match record:
            case Died(seat=seat):
                dead.add(seat)
            case Broken(at=at, seat=seat, text=text):
                yield Violation(at, FAILED, f"{seat}: {text}")
            case Restored(shard=shard):
                before = reigns.get(shard)
                if before is not None and before.lineage and (before.holders - dead or terms.single):
                    alive = ", ".join(sorted(before.holders - dead))
                    text = f"shard {shard} begins anew, while {alive or 'nobody'} had its values"
                    yield Violation(record.at, GONE, text)
                reigns[shard] = _Reign(record)
            case Promoted(shard=shard):
                reigns[shard] = _Reign(record)
            case Answered(shard=shard, seat=by) | Secured(shard=shard, by=by) if by == reigns[shard].seat:
                reigns[shard].note(record)
            case Answered(at=at, shard=shard, seat=seat, position=position):
                reign = reigns[shard]
                # One that does not know yet may let a worker know of what its successor has, too.
                if record.lineage != reign.lineage or position > reign.began_at:
                    text = f"{seat} lets a worker know of record {position} of shard {shard}"
                    whose = f"which {reign.seat} holds from record {reign.began_at} on"
                    yield Violation(at, TWO, f"{text}, {whose}")
