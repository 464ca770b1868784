"""Thousands of jobs among faults. TRAINBAND_SCHEDULES says how many in all, TRAINBAND_FIRST_SEED where they begin.

Where nobody says how many, `make test` runs the first fifty of most kinds, and `make test-all` the others, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from tests.simulation.history import Answered, Applied, In, Out, Promoted, Record, Refusal, Restored, Secured, Told
from tests.simulation.run import Outcome, how_to_replay, run_seed, story
from tests.simulation.scenario import KINDS, RULES, STANDBYS
from trainband.wire.messages.fields import ELASTIC_BASE

SAID = "TRAINBAND_SCHEDULES" in os.environ
SCHEDULES = int(os.environ.get("TRAINBAND_SCHEDULES", "2000"))
FIRST_SEED = int(os.environ.get("TRAINBAND_FIRST_SEED", "0"))

CHUNK = 50
"""Schedules of one test: so that all cores have some."""

WITH_STANDBYS_ONLY = {"sync-backups", "sync-aggregate"}
"""Update rules that `make test` tries in jobs with standbys only, of which each draws one of all rules."""

WEIGHTS = {kind: 3 if kind in RULES else 2 for kind in KINDS}
"""Of how many schedules each kind has a share: one with standbys takes four times as long."""


def _chunks() -> list[Any]:
    """(kind, first seed, how many)."""
    shares = {kind: -(-SCHEDULES * weight // sum(WEIGHTS.values())) for kind, weight in WEIGHTS.items()}
    return [
        pytest.param(
            kind,
            FIRST_SEED + first,
            min(CHUNK, share - first),
            marks=[] if SAID or (first == 0 and kind not in WITH_STANDBYS_ONLY) else [pytest.mark.slow],
        )
        for kind, share in shares.items()
        for first in range(0, share, CHUNK)
    ]


def _kept_promises(kind: str, first: int, count: int) -> list[Outcome]:
    """Runs so many schedules, none of which may break a promise."""
    outcomes = [run_seed(seed, kind) for seed in range(first, first + count)]
    failed = [story(outcome, kind) for outcome in outcomes if outcome.violations]
    if failed:
        pytest.fail(f"{len(failed)} schedules fail:\n" + "\n".join(failed[:5]), pytrace=False)
    return outcomes


@pytest.mark.limit(400)  # it computes all the time, half a minute with a core of its own
@pytest.mark.parametrize(("kind", "first", "count"), _chunks())
def test_every_promise_holds_under_every_schedule(kind: str, first: int, count: int) -> None:
    outcomes = _kept_promises(kind, first, count)
    if (first, count) == (0, CHUNK):
        _require_bad(kind, outcomes)


def _require_bad(kind: str, outcomes: Sequence[Outcome]) -> None:
    """Asserts that these schedules are as bad as they should be: what never happens in them is not tested by them."""
    records = [record for outcome in outcomes for record in outcome.history]
    told = [record.text for record in records if isinstance(record, Told)]
    for fault in ("Crash(", "Pause(", "Cut(", "Break(", "Terminate(", "task='chief'", "task='ps:0'"):
        assert sum(fault in text for text in told) > 2, fault
    assert {"lost", "left", "paused"} <= {record.why for record in records if isinstance(record, Out)}
    assert sum(isinstance(record, Applied) for record in records) > 200
    assert sum(isinstance(record, In) and record.worker >= ELASTIC_BASE for record in records) > 20
    drifting = [outcome.scenario.clocks() for outcome in outcomes if outcome.scenario.drift]
    assert sum(len(set(clocks.values())) == len(clocks) for clocks in drifting) > 5
    if kind not in RULES:
        _require_bad_for_standbys(kind, records, told)
        return
    for fault in ("successor=True", "both_ways=False"):
        assert sum(fault in text for text in told) > 2, fault
    assert any(isinstance(record, Refusal) for record in records)
    assert any(isinstance(record, Restored) and record.version > 0 for record in records)


def _require_bad_for_standbys(kind: str, records: Sequence[Record], told: Sequence[str]) -> None:
    for fault in ("task='arbiter'", "source='arbiter'", "target=''", "handed over"):
        assert sum(fault in text for text in told) > 2, fault
    assert sum(isinstance(record, Promoted) for record in records) > 50
    assert sum(isinstance(record, Secured) for record in records) > 100
    assert sum(isinstance(record, Answered) and len(record.holders) == 1 for record in records) > 50
    assert sum(isinstance(record, Answered) and len(record.holders) == 2 for record in records) > 1000
    if kind == STANDBYS:
        assert sum("back_after_s=None" in text for text in told) > 5
    else:
        assert any(isinstance(record, Restored) and record.version > 0 for record in records)


@pytest.mark.smoke
def test_a_seed_is_the_same_job_every_time() -> None:
    one, other = (run_seed(11, "sync") for _ in range(2))
    assert one.history == other.history
    assert one.events == other.events
    assert run_seed(12, "sync").history != one.history


def test_how_a_seed_is_replayed() -> None:
    assert how_to_replay(1234, "sync") == "python -m tests.simulation --seed 1234 --rule sync"
    assert how_to_replay(7, "async", planted="x").endswith("--planted x")
