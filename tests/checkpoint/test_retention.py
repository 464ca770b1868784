"""Which checkpoints are kept, as a table."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trainband.checkpoint import Retention

HOUR = 3600.0


@pytest.mark.parametrize(
    ("retention", "hours", "kept"),
    [
        (Retention(), {}, set()),
        (Retention(), {1: 0.0}, {1}),
        (Retention(keep=2), {1: 0.0, 2: 1.0, 3: 2.0}, {2, 3}),
        (Retention(keep=1), {10: 0.0, 9: 5.0}, {10}),  # the newest is the one furthest on, not the one last written
        # every 2 hours, from the oldest: 0.0, 2.5 (the first that is due), 4.5
        (Retention(keep=1, every_hours=2), {1: 0.0, 2: 1.9, 3: 2.5, 4: 4.4, 5: 4.5, 6: 4.6}, {1, 3, 5, 6}),
        (Retention(keep=3, every_hours=2), {1: 0.0, 2: 1.9, 3: 2.5, 4: 4.4, 5: 4.5, 6: 4.6}, {1, 3, 4, 5, 6}),
        # a gap: the interval starts anew at the one that is kept
        (Retention(keep=1, every_hours=1), {1: 0.0, 2: 10.5, 3: 11.0, 4: 11.5, 5: 11.6}, {1, 2, 4, 5}),
        (Retention(keep=1, every_hours=100), {1: 0.0, 2: 1.0, 3: 2.0}, {1, 3}),
        # a clock that was set back
        (Retention(keep=1, every_hours=1), {1: 5.0, 2: 4.0, 3: 6.0, 4: 6.1}, {1, 3, 4}),
    ],
)
def test_kept(retention: Retention, hours: dict[int, float], kept: set[int]) -> None:
    assert retention.kept({step: at * HOUR for step, at in hours.items()}) == kept


def test_keeping_in_rounds_keeps_what_keeping_at_once_would() -> None:
    retention = Retention(keep=2, every_hours=1)
    everything = {step: step * 0.3 * HOUR for step in range(40)}
    there: dict[int, float] = {}
    for step, at in everything.items():
        there[step] = at
        there = {kept: there[kept] for kept in retention.kept(there)}
    assert there.keys() == retention.kept(everything)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"keep": 0}, "keep must be at least 1"),
        ({"every_hours": 0.0}, "every_hours must be"),
        ({"every_hours": -1.0}, "every_hours must be"),
        ({"every_hours": math.inf}, "every_hours must be"),
        ({"every_hours": math.nan}, "every_hours must be"),
    ],
)
def test_checked_at_birth(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Retention(**settings)
