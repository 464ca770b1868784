"""Of two replicas one holds the shard at a time, and what a worker knows of is never lost while a replica has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulation.history import Answered, Broken, Died, Promoted, Record, Restored, Secured, Terms, Violation

TWO = "acknowledged by one that is succeeded"
GONE = "values given up that a replica had"
FAILED = "a replica's thread has failed"


class _Term:
    """Who holds a shard, from when."""

    def __init__(self, began: Restored | Promoted) -> None:
        self.replica = began.replica
        self.lineage = began.lineage if isinstance(began, Promoted) else ""
        self.began_at = began.position if isinstance(began, Promoted) else 0
        """The last record of what it began with."""
        self.holders = frozenset({began.replica})
        """Who has all that workers know of."""
        self._known = self.began_at

    def record(self, record: Answered | Secured) -> None:
        """A worker knows of more, or a replica has more."""
        if isinstance(record, Answered):
            self.lineage, self._known, self.holders = record.lineage, record.position, record.holders
        elif record.position >= self._known:
            self.holders |= {record.replica}


def forgetful(history: Sequence[Record]) -> set[tuple[float, int]]:
    """When which shard went to a replica that had not all of what workers knew of, because all that had it are dead.

    So it is if one replica has gone on alone, by the word of the arbiter, and dies: the other one, which was cut off,
    finds a new process and does not know.
    """
    is_primary: dict[int, _Term] = {}
    dead: set[str] = set()
    found: set[tuple[float, int]] = set()
    if not any(isinstance(record, Promoted) for record in history):
        return found
    for record in history:
        match record:
            case Died(replica=replica):
                dead.add(replica)
            case Restored(shard=shard):
                is_primary[shard] = _Term(record)
            case Promoted(at=at, shard=shard):
                if shard in is_primary and is_primary[shard].holders <= dead:
                    found.add((at, shard))
                is_primary[shard] = _Term(record)
            case Answered(shard=shard, replica=by) | Secured(shard=shard, by=by) if by == is_primary[shard].replica:
                is_primary[shard].record(record)
    return found


def broken_failovers(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Checks every answer, and every shard that was given values of a checkpoint."""
    is_primary: dict[int, _Term] = {}
    dead: set[str] = set()
    if terms.single:
        for at, shard in sorted(forgetful(history)):
            yield Violation(at, GONE, f"one takes shard {shard} over that has not all")
    for record in history:
        match record:
            case Died(replica=replica):
                dead.add(replica)
            case Broken(at=at, replica=replica, text=text):
                yield Violation(at, FAILED, f"{replica}: {text}")
            case Restored(shard=shard):
                before = is_primary.get(shard)
                if before is not None and before.lineage and (before.holders - dead or terms.single):
                    alive = ", ".join(sorted(before.holders - dead))
                    text = f"shard {shard} begins anew, while {alive or 'nobody'} had its values"
                    yield Violation(record.at, GONE, text)
                is_primary[shard] = _Term(record)
            case Promoted(shard=shard):
                is_primary[shard] = _Term(record)
            case Answered(shard=shard, replica=by) | Secured(shard=shard, by=by) if by == is_primary[shard].replica:
                is_primary[shard].record(record)
            case Answered(at=at, shard=shard, replica=replica, position=position):
                term = is_primary[shard]
                # One that does not know yet may let a worker know of what its successor has, too.
                if record.lineage != term.lineage or position > term.began_at:
                    text = f"{replica} lets a worker know of record {position} of shard {shard}"
                    whose = f"which {term.replica} holds from record {term.began_at} on"
                    yield Violation(at, TWO, f"{text}, {whose}")
