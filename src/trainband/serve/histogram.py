"""Histogram: counts a server's values by size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from trainband.runtime.exposition import Labels, number

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histograms of durations."""


class Histogram:
    """Number of values up to each bound, for each set of labels.

    Args:
      name: with its unit.
      description: for `# HELP`.
      bounds: ascending.
    """

    kind = "histogram"

    def __init__(self, name: str, description: str, bounds: Sequence[float] = SECONDS) -> None:
        self.name = name
        self.description = description
        self._bounds = tuple(bounds)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, *labels: tuple[str, str]) -> None:
        """Counts one value."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
            self._sums[labels] = 0.0
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def total(self) -> tuple[int, float]:
        """Returns the number and sum of the values, over all labels."""
        return sum(map(sum, self._counts.values())), sum(self._sums.values())

    def samples(self) -> Iterable[tuple[str, Labels, float]]:
        """Yields (name, labels, value) for every line."""
        for labels, counts in self._counts.items():
            so_far = 0
            for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
                so_far += count
                yield f"{self.name}_bucket", (*labels, ("le", number(bound))), so_far
            yield f"{self.name}_sum", labels, self._sums[labels]
            yield f"{self.name}_count", labels, so_far
