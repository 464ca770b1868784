"""Series: a job's metrics over time, in memory that stays bounded over weeks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resolution:
    """Resolution at which a part of the past is kept.

    Attributes:
      every_s: seconds between two rows.
      rows: number kept.
    """

    every_s: float
    rows: int


RESOLUTIONS = (Resolution(1.0, 1800), Resolution(30.0, 2880), Resolution(900.0, 8640))
"""Half an hour by the second, a day by the half minute, and 90 days by the quarter hour: 13,320 rows."""

Row = tuple[float, ...]
"""The time, and a value for each name; NaN if unknown."""


class Series:
    """Rows of values, kept at several resolutions at once; each coarser row is the mean of finer ones.

    Args:
      resolutions: from finest to coarsest.
    """

    def __init__(self, names: Sequence[str], resolutions: Sequence[Resolution] = RESOLUTIONS) -> None:
        self.names = tuple(names)
        self._rings = [_Ring(resolution, len(self.names)) for resolution in resolutions]

    def add(self, at: float, values: Mapping[str, float | None]) -> None:
        """Adds the values at a time; times ascend.

        Args:
          at: seconds since 1970.
          values: by name; one that is missing, `None` or not finite counts as unknown.
        """
        row = tuple(_number(values.get(name)) for name in self.names)
        for ring in self._rings:
            ring.add(at, row)

    def rows(self) -> list[Row]:
        """Returns the whole past, ascending, each part in its finest rows."""
        found: list[Row] = []
        until = math.inf
        for ring in self._rings:
            part = ring.rows(until)
            found = part + found
            if found:
                until = found[0][0]
        return found

    def columns(self, most: int | None = None) -> dict[str, list[float | None]]:
        """Returns the rows as columns, `at` first, with `None` for unknown values.

        Args:
          most: rows; see `thinned`.
        """
        rows = self.rows()
        columns = zip(*rows, strict=True) if rows else [()] * (1 + len(self.names))
        found = {
            name: [None if math.isnan(value) else value for value in column]
            for name, column in zip(("at", *self.names), columns, strict=True)
        }
        return thinned(found, most)


def thinned(columns: dict[str, list[float | None]], most: int | None) -> dict[str, list[float | None]]:
    """Returns columns of at most `most` evenly spaced rows, including the newest."""
    length = len(columns["at"])
    if most is None or length <= most:
        return columns
    step = math.ceil(length / most)
    return {name: column[(length - 1) % step :: step] for name, column in columns.items()}


class _Ring:
    """The rows of one resolution."""

    def __init__(self, resolution: Resolution, width: int) -> None:
        self._every_s = resolution.every_s
        self._rows: deque[Row] = deque(maxlen=resolution.rows)
        self._width = width
        self._began_at: float | None = None
        self._sums = [0.0] * width
        self._counts = [0] * width
        self._times: tuple[float, int] = (0.0, 0)

    def add(self, at: float, row: Row) -> None:
        if self._began_at is not None and at - self._began_at >= self._every_s * 0.999:
            self._close()
        if self._began_at is None:
            self._began_at = at
        for place, value in enumerate(row):
            if not math.isnan(value):
                self._sums[place] += value
                self._counts[place] += 1
        self._times = (self._times[0] + at - self._began_at, self._times[1] + 1)

    def rows(self, until: float) -> list[Row]:
        """Returns those before a time, including the incomplete one."""
        rows = [*self._rows, *([self._mean()] if self._began_at is not None else [])]
        return [row for row in rows if row[0] < until]

    def _mean(self) -> Row:
        began_at = self._began_at or 0.0
        values = (total / count if count else math.nan for total, count in zip(self._sums, self._counts, strict=True))
        return (began_at + self._times[0] / self._times[1], *values)

    def _close(self) -> None:
        self._rows.append(self._mean())
        self._began_at = None
        self._sums = [0.0] * self._width
        self._counts = [0] * self._width
        self._times = (0.0, 0)


def _number(value: float | None) -> float:
    return float(value) if value is not None and math.isfinite(value) else math.nan
