"""Checkpoints: all parts are of one moment where the workers compute in lockstep, and the last one is there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tests.simulation.checks.failover import forgetful
from tests.simulation.history import (
    Begun,
    Committed,
    Ended,
    In,
    Out,
    Promoted,
    Record,
    Restored,
    Terms,
    Told,
    Violation,
)

APART = "parts of one checkpoint are of different versions"
LAST = "no checkpoint of the end"
UNKNOWN = "values that no checkpoint has"

CHIEF = "worker:0"
HELD = re.compile(rf" its last checkpoint is not in .* is in use by {CHIEF} ")


def bad_checkpoints(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Checks every checkpoint, and every shard that was given values."""
    steps = {0}
    """Of a checkpoint, each shard resumes from its global step, whatever its own version was."""
    has_begun = is_apart = False
    """Whether the shards may be at different versions for good: one has lost updates, or gone on without a worker."""
    lost = forgetful(history)
    for record in history:
        match record:
            case Begun():
                has_begun = True
            case Out(why="lost"):
                is_apart = True
            case Promoted(at=at, shard=shard) if (at, shard) in lost:
                is_apart = True
            case Committed(versions=of, complete=complete):
                if len(set(of)) > 1 and terms.in_step and not (complete or is_apart):
                    yield Violation(record.at, APART, f"the checkpoint of step {record.global_step} has parts of {of}")
                steps.add(record.global_step)
            case Restored(shard=shard, version=version):
                is_apart = is_apart or has_begun
                if version not in steps:
                    text = f"shard {shard} resumes from version {version}, of which no checkpoint was committed"
                    yield Violation(record.at, UNKNOWN, text)
    ended = [record for record in history if isinstance(record, Ended)]
    committed = [record for record in history if isinstance(record, Committed)]
    if not terms.saves or not ended or ended[-1].unfinished or any(one.complete for one in committed):
        return
    if CHIEF in ended[-1].done or _could_succeed(history, terms):
        yield Violation(ended[-1].at, LAST, f"{len(committed)} checkpoints, and none of the end")


def _could_succeed(history: Sequence[Record], terms: Terms) -> bool:
    """Whether the chief was lost for good while another worker went on for long enough to have its duties.

    A chief that is stopped before it knows its job holds the directory for the lease of its lock, which is real time,
    so that here it never ends: the other worker ends with an error that says so.
    """
    if any(isinstance(one, Told) and HELD.search(one.text) for one in history):
        return False
    joined: dict[int, float] = {}
    lost_at = None
    for record in history:
        match record:
            case In(at=at, shard=0, worker=worker):
                joined[worker] = at
                lost_at = None if worker == 0 else lost_at
            case Out(at=at, shard=0, worker=0, why="lost"):
                lost_at = at
            case Out(at=at, shard=0, worker=worker, why="left") if worker and lost_at is not None:
                if at - max(lost_at, joined.get(worker, at)) > terms.lease_s:
                    return True
    return False
