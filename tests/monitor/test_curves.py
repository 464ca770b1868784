"""Curves and the schema of a history: pure."""

from __future__ import annotations

import itertools
import math

import pytest

from trainband.monitor.history.curves import Curves, spacing
from trainband.monitor.history.schema import Start, next_start

DAY_S = 86_400.0


@pytest.mark.smoke
def test_three_weeks_of_a_series_are_some_thousand_points_that_lose_nothing_but_resolution() -> None:
    curves, age, made, values = Curves(10), 0.0, list[tuple[float, float]](), list[float]()
    pending = 0
    total = 0.0
    while age < 21 * DAY_S:
        age += max(1.0, min(spacing(age), 5.0))
        curves.add("loss", age, int(age))
        values.append(age)
        for _, step, mean in curves.pop(age):
            # Each point is the mean of all values since the one before.
            assert step == int(age)
            assert mean == pytest.approx(sum(values[pending:]) / (len(values) - pending))
            made.append((age, mean))
            pending = len(values)
            total += mean
    assert 12_000 < len(made) < 17_000
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(made)]
    assert all(gap >= spacing(at) for gap, (at, _) in zip(gaps, made[1:], strict=True))
    assert max(gaps) < 21 * DAY_S / 2000 + 6
    assert len(curves._intervals) == 1  # noqa: SLF001 - what it keeps is what is bounded


def test_means_weights_and_values_that_are_no_numbers() -> None:
    curves = Curves(2)
    curves.add("rate", 1.0, 1, weight=3.0)
    curves.add("rate", 5.0, 2, weight=1.0)
    curves.add("loss", math.nan, 3)
    curves.add("one series too many", 1.0, 3)
    taken = {name: (step, value) for name, step, value in curves.pop(0.0)}
    assert taken.pop("rate") == (2, 2.0)
    assert math.isnan(taken.pop("loss")[1])
    assert not taken
    curves.add_sum("loss", 6.0, 3, 1, 9)  # one that is no number does not hide the others
    assert curves.pop(0.5) == []
    assert curves.pop(0.5, everything=True) == [("loss", 9, 2.0)]


def test_series_of_many_workers_are_stretched() -> None:
    curves = Curves(10)
    found = []
    for age in range(100):
        curves.add("worker:7/loss", 1.0, age, stretch=10.0)
        found += curves.pop(float(age))
    assert len(found) == 10


@pytest.mark.parametrize(
    ("job", "resumed", "goes_on"),
    [("a", False, True), ("b", True, True), ("b", False, False)],
    ids=["another process of the job", "the job was started again", "a new run in the same directory"],
)
def test_which_run_a_file_belongs_to(job: str, resumed: bool, goes_on: bool) -> None:
    before = Start(
        run="first", run_began_at=50.0, sequence=3, job="a", task="worker:0", started_at=70.0, global_step=100
    )
    start = next_start(before, token="new", job=job, task="worker:1", now=90.0, global_step=120, resumed=resumed)
    assert start.sequence == 4
    assert (start.run, start.run_began_at) == (("first", 50.0) if goes_on else ("new", 90.0))
