"""All checks together."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.checks.liveness import unfinished_jobs
from tests.simulation.checks.pieces import broken_leases
from tests.simulation.checks.rules import broken_rules
from tests.simulation.checks.succession import broken_successions
from tests.simulation.checks.updates import lost_or_doubled
from tests.simulation.checks.waiting import vain_waits
from tests.simulation.history import Record, Terms, Violation


def violations(history: Sequence[Record], terms: Terms) -> list[Violation]:
    """Every promise that this history breaks, in the order of time."""
    found: list[Violation] = []
    for check in (lost_or_doubled, broken_rules, vain_waits, broken_leases, broken_successions, unfinished_jobs):
        found += check(history, terms)
    return sorted(found, key=lambda violation: violation.at)
