"""Once a number of the optimizer's state is set, every later update is made with it, whoever makes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulation.checks.failover import forgetful
from tests.simulation.history import Final, Promoted, Record, Restored, Steered, Terms, Violation

LOST = "update made with an old number"


def lost_steering(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:  # noqa: ARG001 - as all checks
    """Checks the numbers of each shard at the end, from the last time on that it was set, or its values restored."""
    lost = forgetful(history)
    final = {record.shard: record for record in history if isinstance(record, Final)}
    for shard, end in final.items():
        holder, steered = "", None
        for record in history:
            match record:
                case Restored(shard=of, replica=replica) if of == shard:
                    holder, steered = replica, None
                case Promoted(at=at, shard=of, replica=replica, version=version) if of == shard:
                    holder = replica
                    if (at, of) in lost or (steered is not None and steered.version > version):
                        steered = None
                case Steered(shard=of, replica=replica) if of == shard and replica == holder:
                    steered = record
        if steered is None or end.replica != holder:
            continue
        later = end.numbers[steered.version :]
        if any(number != steered.value for number in later):
            text = f"shard {shard}: {later} after it was set to {steered.value} at version {steered.version}"
            yield Violation(end.at, LOST, text)
