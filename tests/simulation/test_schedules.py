"""Thousands of jobs among faults. TRAINBAND_SCHEDULES says how many in all, TRAINBAND_FIRST_SEED where they begin."""

from __future__ import annotations

import os

import pytest

from tests.simulation.checks.failover import forgetful
from tests.simulation.history import Answered, Applied, In, Out, Promoted, Refusal, Restored, Secured, Told
from tests.simulation.run import failing, how_to_replay, run_seed, story
from tests.simulation.scenario import KINDS, RULES, STANDBYS, STANDBYS_ANY
from trainband.ps.membership.members import GUESTS

SCHEDULES = int(os.environ.get("TRAINBAND_SCHEDULES", "2000"))
FIRST_SEED = int(os.environ.get("TRAINBAND_FIRST_SEED", "0"))

CHUNK = 50
"""Schedules of one test: so that all cores have some."""


def _chunks() -> list[tuple[str, int, int]]:
    """Of every kind as many: (kind, first seed, how many)."""
    each = -(-SCHEDULES // len(KINDS))
    return [(kind, FIRST_SEED + first, min(CHUNK, each - first)) for kind in KINDS for first in range(0, each, CHUNK)]


@pytest.mark.parametrize(("kind", "first", "count"), _chunks())
def test_every_promise_holds_under_every_schedule(kind: str, first: int, count: int) -> None:
    failed = [story(outcome, kind) for outcome in failing(first, count, kind)]
    if failed:
        pytest.fail(f"{len(failed)} schedules fail:\n" + "\n".join(failed[:5]), pytrace=False)


@pytest.mark.smoke
def test_a_seed_is_the_same_job_every_time() -> None:
    one, other = (run_seed(11, "sync") for _ in range(2))
    assert one.history == other.history
    assert one.events == other.events
    assert run_seed(12, "sync").history != one.history


def test_the_schedules_are_as_bad_as_they_should_be() -> None:
    """What never happens in them is not tested by them."""
    outcomes = [run_seed(seed, rule) for rule in RULES for seed in range(40)]
    records = [record for outcome in outcomes for record in outcome.history]
    told = [record.text for record in records if isinstance(record, Told)]
    for fault in (
        "Crash(",
        "Pause(",
        "Cut(",
        "Break(",
        "Terminate(",
        "task='chief'",
        "task='ps:0'",
        "successor=True",
        "both_ways=False",
    ):
        assert sum(fault in text for text in told) > 5, fault
    assert sum(isinstance(record, Refusal) for record in records) > 5
    assert {record.why for record in records if isinstance(record, Out)} == {"lost", "left", "paused"}
    assert sum(isinstance(record, Restored) and record.version > 0 for record in records) > 3
    assert sum(isinstance(record, Applied) for record in records) > 1000
    assert sum(isinstance(record, In) and record.worker >= GUESTS for record in records) > 20
    drifting = [outcome.scenario.clocks() for outcome in outcomes if outcome.scenario.drift]
    assert sum(len(set(clocks.values())) == len(clocks) for clocks in drifting) > 50


def test_standbys_are_tried_as_badly_as_they_should_be() -> None:
    outcomes = [run_seed(seed, kind) for kind in (STANDBYS, STANDBYS_ANY) for seed in range(60)]
    records = [record for outcome in outcomes for record in outcome.history]
    told = [record.text for record in records if isinstance(record, Told)]
    for fault in (
        *("Crash(", "Pause(", "Cut(", "Break(", "task='ps:0'", "'arbiter'", "target=''", "back_after_s=None"),
        "handed over",
    ):
        assert sum(fault in text for text in told) > 5, fault
    assert sum(isinstance(record, Promoted) for record in records) > 100
    assert sum(isinstance(record, Secured) for record in records) > 200
    assert sum(isinstance(record, Answered) and len(record.holders) == 1 for record in records) > 100
    assert sum(isinstance(record, Answered) and len(record.holders) == 2 for record in records) > 1000
    single = [record for outcome in outcomes[:60] for record in outcome.history]
    assert sum(isinstance(record, Promoted) for record in single) > 50
    assert any(isinstance(record, Restored) and record.version > 0 for record in records)
    assert any(forgetful(outcome.history) for outcome in outcomes)


def test_how_a_seed_is_replayed() -> None:
    assert how_to_replay(1234, "sync") == "python -m tests.simulation --seed 1234 --rule sync"
    assert how_to_replay(7, "async", planted="x").endswith("--planted x")
