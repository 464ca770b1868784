"""What a worker has left for its next life, and was told that it is there, is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulation.checks.failover import forgetful
from tests.simulation.history import Found, Kept, Promoted, Record, Restored, Terms, Violation

LOST = "worker state lost"

HOLDER = 0
"""The shard that keeps it."""


def lost_worker_state(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Checks what each worker finds. What it has left since the values of a checkpoint were restored counts."""
    kept: dict[str, set[bytes]] = {}
    newest: dict[str, Kept] = {}
    lost = forgetful(history)
    for record in history:
        match record:
            case Restored(shard=shard) if shard == HOLDER:
                newest.clear()
            case Promoted(at=at, shard=shard) if shard == HOLDER and (at, shard) in lost:
                newest.clear()
            case Kept(task=task) if int(task.partition(":")[2]) not in terms.planned:
                pass  # no later job has a place for what an elastic worker has left
            case Kept(task=task, data=data):
                kept.setdefault(task, set()).add(data)
                newest[task] = record
            case Found(task=task, data=data):
                last = newest.get(task)
                if last is not None and data != last.data and data in kept[task] | {b""}:
                    yield Violation(record.at, LOST, f"{task} finds {data!r}, and had left {last.data!r}")
