"""After the troubles, everything comes to its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.simulation.history import Ended, Final, Record, Terms, Violation

STUCK = "job does not end"
DEADLOCK = "workers wait in a deadlock over several ps"
"""One waits at one ps for a second, which waits for it at another: no single rule can see that."""


def unfinished_jobs(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:  # noqa: ARG001 - as all checks
    """Checks that nobody is left, and says who waits for whom otherwise."""
    finals = {record.shard: record for record in history if isinstance(record, Final)}
    for record in history:
        if isinstance(record, Ended) and record.unfinished:
            whom = ", ".join(
                f"{sorted(final.unanswered)} at ps:{shard} for {sorted(final.waits)}"
                for shard, final in finals.items()
                if final.waits
            )
            text = f"{', '.join(record.unfinished)} not at the end; waiting: {whom or 'nobody'}"
            yield Violation(record.at, DEADLOCK if _has_deadlock(finals) else STUCK, text)


def _has_deadlock(finals: Mapping[int, Final]) -> bool:
    """Whether somebody waits for himself, over more than one ps."""
    if any(_reaches_itself({shard: final}) for shard, final in finals.items()):
        return False
    return _reaches_itself(finals)


def _reaches_itself(finals: Mapping[int, Final]) -> bool:
    waits_for: dict[int, set[int]] = {}
    for final in finals.values():
        for worker in final.unanswered:
            waits_for.setdefault(worker, set()).update(final.waits)
    for worker in waits_for:
        seen: set[int] = set()
        todo = set(waits_for[worker])
        while todo:
            other = todo.pop()
            if other == worker:
                return True
            if other not in seen:
                seen.add(other)
                todo |= waits_for.get(other, set())
    return False
