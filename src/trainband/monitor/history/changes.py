"""Changes: what happened to a job between two looks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainband.job.reports import Progress

_GONE = {
    "lost": ("death", "was lost: its lease expired or its process died"),
    "failed": ("death", "left the job after an error"),
    "preempted": ("leave", "left the job when asked to end"),
    "left": ("leave", "left the job"),
}


class Change(NamedTuple):
    """Something that happened."""

    kind: str
    """`join`, `leave`, `death`, `failover` or `restart`."""
    text: str
    value: float | None = None


def changes(before: Progress | None, now: Progress) -> Iterator[Change]:
    """Yields the changes between two looks.

    Args:
      before: the earlier look; `None` for the first.
    """
    yield from _of_workers(before, now)
    if before is not None:
        yield from _of_shards(before, now)


def _of_workers(before: Progress | None, now: Progress) -> Iterator[Change]:
    if len(now.workers) < 2 and (before is None or len(before.workers) < 2):
        return  # a process that is alone, or sees only itself
    known = {} if before is None else {row.task: row.presence for row in before.workers}
    for row in now.workers:
        was = known.pop(row.task, None)
        if row.presence == was:
            continue
        if row.presence == "live":
            yield Change("join", f"{row.task} {'has joined' if was is None else 'is back'}")
        elif row.presence in _GONE and was is not None:
            kind, what = _GONE[row.presence]
            yield Change(kind, f"{row.task} {what}")
    for task, presence in known.items():
        if presence == "live":
            yield Change("leave", f"{task} is no longer in the job")


def _of_shards(before: Progress, now: Progress) -> Iterator[Change]:
    known = {row.shard: row for row in before.shards}
    for row in now.shards:
        was = known.get(row.shard)
        if was is None:
            continue
        if row.lineage != was.lineage:
            yield Change("restart", f"shard {row.shard} was initialised again, on {row.ps}")
        elif row.term > was.term:
            yield Change("failover", f"{row.ps} now holds shard {row.shard}, in term {row.term}", float(row.term))
