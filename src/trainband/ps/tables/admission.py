"""Admission: decides which ids without a row get one."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainband.ps.tables.count_sketch import CountSketch
from trainband.rows.admission import Admission, AfterCount, WithProbability
from trainband.rows.random_bits import mixed


class Admitter(Protocol):
    """Decides on ids without a row."""

    @property
    def bytes(self) -> int:
        """Its memory."""
        ...

    def admitted(self, ids: NDArray[np.uint64], step: int) -> NDArray[np.bool_]:
        """Which of these distinct ids get a row at this update."""
        ...


class _All:
    bytes = 0

    def admitted(self, ids: NDArray[np.uint64], step: int) -> NDArray[np.bool_]:  # noqa: ARG002
        return np.ones(len(ids), np.bool_)


class _AfterCount:
    def __init__(self, rule: AfterCount) -> None:
        self._count = rule.count
        self._sketch = CountSketch(rule.counters, rule.window or 10 * rule.counters)

    @property
    def bytes(self) -> int:
        return self._sketch.bytes

    def admitted(self, ids: NDArray[np.uint64], step: int) -> NDArray[np.bool_]:  # noqa: ARG002
        enough: NDArray[np.bool_] = self._sketch.add(ids) >= self._count
        return enough


class _WithProbability:
    bytes = 0

    def __init__(self, rule: WithProbability) -> None:
        self._below = rule.probability * 2.0**64

    def admitted(self, ids: NDArray[np.uint64], step: int) -> NDArray[np.bool_]:
        drawn: NDArray[np.bool_] = mixed(ids ^ mixed(np.array([step], np.uint64))) < self._below
        return drawn


def admitter(rule: Admission | None) -> Admitter:
    """The object that carries out a rule of admission."""
    if isinstance(rule, AfterCount) and rule.count > 1:
        return _AfterCount(rule)
    return _WithProbability(rule) if isinstance(rule, WithProbability) else _All()
