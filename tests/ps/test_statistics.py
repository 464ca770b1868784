"""Statistics: rates and quantiles, against what they are by definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainband.job.statistics import RATE_WINDOW_S, Rate, StalenessCounts


def test_without_updates_all_is_nought() -> None:
    counts = StalenessCounts()
    assert (counts.quantile(0.5), counts.quantile(0.99), counts.maximum()) == (0.0, 0.0, 0)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.sampled_from([0.25, 0.5, 0.9, 0.99, 1.0]))
def test_quantiles_are_numpys_inverted_cdf(values: list[int], q: float) -> None:
    counts = StalenessCounts()
    for value in values:
        counts.add(value)
    assert counts.quantile(q) == np.quantile(values, q, method="inverted_cdf")
    assert counts.maximum() == max(values)


RATES: list[tuple[list[tuple[float, int]], float]] = [
    # (now, count) one after the other -> events per second at the last
    ([(0.0, 0)], 0.0),
    ([(0.0, 0), (1.0, 10)], 0.0),  # it counts from the first event, which is slow
    ([(0.0, 0), (9.0, 1), (10.0, 11)], 10.0),
    ([(0.0, 0), (0.5, 5), (1.5, 15), (2.5, 25), (3.5, 25)], 5.0),  # the window is 2 s
    ([(0.0, 0), (1.0, 1), (100.0, 991)], 10.0),  # asked seldom: the mean since the last time
    ([(5.0, 7), (5.0, 7)], 0.0),  # asked twice at one time
    ([(0.0, 0), (0.5, 5), (1.5, 15), (1.5, 30)], 10.0),  # a second answer for one time does not count
    ([(0.0, 100), (1.0, 100)], 0.0),
]


@pytest.mark.parametrize(("samples", "rate"), RATES)
def test_rate(samples: list[tuple[float, int]], rate: float) -> None:
    counter = Rate()
    for now, count in samples:
        found = counter.at(now, count)
    assert found == pytest.approx(rate)


@given(st.lists(st.floats(0.01, 0.5), min_size=1, max_size=200), st.floats(0.1, 1000.0))
def test_a_steady_rate_is_found_and_little_is_kept(steps: list[float], per_second: float) -> None:
    counter = Rate()
    now = 0.0
    counter.at(0.0, -1)
    counter.at(0.0, 0)
    for step in steps:
        now += step
        found = counter.at(now, round(now * per_second * 1000))
    assert found == pytest.approx(per_second * 1000, rel=0.2, abs=300)
    assert RATE_WINDOW_S == 2.0
