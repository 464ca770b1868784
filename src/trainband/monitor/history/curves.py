"""Curves: the points of a run's series, further apart as the run grows older."""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_SPACING_S = 1.0
"""Seconds between two points of a series, at least."""

POINTS = 2000
"""A point's interval is at least the run's age divided by this."""

STRETCH_FROM = 32
"""From this many workers on, the points of each worker's series are further apart: all have as many as these."""


def spacing(age_s: float, stretch: float = 1.0) -> float:
    """Returns the seconds between two points of a series, in a run of this age.

    A series has at most 2,000 points after half an hour, and from then on 2,000 times the logarithm of the age: 14,000
    after three weeks, 20,000 after a year.

    Args:
      age_s: of the run, in seconds.
      stretch: factor by which the points of this series are further apart than those of others.
    """
    return max(LEAST_SPACING_S, age_s / POINTS) * stretch


@dataclass(slots=True)
class _Interval:
    stretch: float
    ended_s: float = -math.inf
    """The age at which the previous interval ended."""
    total: float = 0.0
    weight: float = 0.0
    others: int = 0
    """How many of its values were not finite."""
    global_step: int = 0


class Curves:
    """Means over intervals. Pure: the time is an argument; the memory is one interval per series.

    Args:
      most_series: further series are dropped.
    """

    def __init__(self, most_series: int) -> None:
        self._most_series = most_series
        self._intervals: dict[str, _Interval] = {}

    def add(self, name: str, value: float, global_step: int, *, weight: float = 1.0, stretch: float = 1.0) -> None:
        """Adds a value.

        A value that is not finite is ignored unless its interval has no other.

        Args:
          weight: of the value in the mean of its interval.
          stretch: see `spacing`.
        """
        interval = self._intervals.get(name)
        if interval is None:
            if len(self._intervals) >= self._most_series:
                return
            interval = self._intervals[name] = _Interval(stretch)
        interval.stretch = stretch
        interval.global_step = global_step
        if math.isfinite(value):
            interval.total += value * weight
            interval.weight += weight
        else:
            interval.others += 1

    def add_sum(self, name: str, total: float, count: int, others: int, global_step: int) -> None:
        """Adds many values at once: the sum of `count` finite ones, and `others` that were not finite."""
        if count:
            self.add(name, total / count, global_step, weight=count)
        if others:
            self.add(name, math.nan, global_step)

    def pop(self, age_s: float, *, everything: bool = False) -> list[tuple[str, int, float]]:
        """Returns the points of ended intervals: the name of the series, the last global step and the mean.

        Args:
          age_s: of the run, in seconds.
          everything: also of unfinished intervals, because the run ends.
        """
        found = []
        for name, interval in self._intervals.items():
            if not (interval.weight or interval.others):
                continue
            if not everything and age_s - interval.ended_s < spacing(age_s, interval.stretch):
                continue
            mean = interval.total / interval.weight if interval.weight else math.nan
            found.append((name, interval.global_step, mean))
            self._intervals[name] = _Interval(interval.stretch, ended_s=age_s)
        return found
