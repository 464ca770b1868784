"""Checkpoints: all parts are of one moment where the workers compute in step, and the last one is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulation.history import Committed, Ended, Record, Restored, Terms, Violation

APART = "parts of one checkpoint are of different versions"
LAST = "no checkpoint of the end"
UNKNOWN = "values that no checkpoint has"


def bad_checkpoints(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Checks every checkpoint, and every shard that was given values."""
    versions: dict[int, set[int]] = {}
    for record in history:
        match record:
            case Committed(versions=of, complete=complete):
                if len(set(of)) > 1 and terms.in_step and not complete:
                    yield Violation(record.at, APART, f"the checkpoint of step {record.global_step} has parts of {of}")
                for shard, version in enumerate(of):
                    versions.setdefault(shard, {0}).add(version)
            case Restored(shard=shard, version=version):
                if version not in versions.get(shard, {0}):
                    text = f"shard {shard} goes on from version {version}, of which no checkpoint was committed"
                    yield Violation(record.at, UNKNOWN, text)
    ended = [record for record in history if isinstance(record, Ended)]
    committed = [record for record in history if isinstance(record, Committed)]
    if terms.saves and ended and not ended[-1].unfinished and not any(one.complete for one in committed):
        yield Violation(ended[-1].at, LAST, f"{len(committed)} checkpoints, and none of the end")
