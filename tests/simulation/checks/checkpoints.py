"""Checkpoints: all parts are of one moment where the workers compute in step, and the last one is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulation.checks.failover import forgetful
from tests.simulation.history import Begun, Committed, Ended, Out, Promoted, Record, Restored, Terms, Violation

APART = "parts of one checkpoint are of different versions"
LAST = "no checkpoint of the end"
UNKNOWN = "values that no checkpoint has"


def bad_checkpoints(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Checks every checkpoint, and every shard that was given values."""
    versions: dict[int, set[int]] = {}
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
                for shard, version in enumerate(of):
                    versions.setdefault(shard, {0}).add(version)
            case Restored(shard=shard, version=version):
                is_apart = is_apart or has_begun
                if version not in versions.get(shard, {0}):
                    text = f"shard {shard} goes on from version {version}, of which no checkpoint was committed"
                    yield Violation(record.at, UNKNOWN, text)
    ended = [record for record in history if isinstance(record, Ended)]
    committed = [record for record in history if isinstance(record, Committed)]
    if terms.saves and ended and not ended[-1].unfinished and not any(one.complete for one in committed):
        yield Violation(ended[-1].at, LAST, f"{len(committed)} checkpoints, and none of the end")
