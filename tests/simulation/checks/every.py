"""All checks together."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.checks.checkpoints import bad_checkpoints
from tests.simulation.checks.failover import broken_failovers
from tests.simulation.checks.liveness import unfinished_jobs
from tests.simulation.checks.pieces import broken_leases
from tests.simulation.checks.rules import broken_rules
from tests.simulation.checks.steering import lost_steering
from tests.simulation.checks.updates import lost_or_doubled
from tests.simulation.checks.waiting import vain_waits
from tests.simulation.checks.worker_state import lost_worker_state
from tests.simulation.history import Died, Promoted, Record, Terms, Violation

CHECKS = (
    lost_or_doubled,
    broken_rules,
    vain_waits,
    broken_leases,
    broken_failovers,
    lost_steering,
    lost_worker_state,
    bad_checkpoints,
    unfinished_jobs,
)


def violations(history: Sequence[Record], terms: Terms) -> list[Violation]:
    """Every promise that this history breaks, in the order of time."""
    found: list[Violation] = []
    history = without_belated(history)
    for check in CHECKS:
        found += check(history, terms)
    return sorted(found, key=lambda violation: violation.at)


def without_belated(history: Sequence[Record]) -> list[Record]:
    """Without the leads that were over before they began: somebody has heard too late that it was handed a shard.

    What such a replica acknowledges is the word of one that holds nothing. It is another matter where the one that has
    gone on in a later term is dead, and this one does not know of that term.
    """
    newest: dict[tuple[int, str], Promoted] = {}
    dead: set[str] = set()
    found = []
    for record in history:
        if isinstance(record, Died):
            dead.add(record.replica)
        elif isinstance(record, Promoted):
            last = newest.get((record.shard, record.lineage))
            if last is not None and record.epoch < last.epoch and last.replica not in dead:
                continue
            newest[record.shard, record.lineage] = record
        found.append(record)
    return found
