"""Eviction: which rows are removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainband.errors import ModelError


class Eviction(Protocol):
    """The seam of eviction."""

    def expired(self, uses: NDArray[np.uint32], unused: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows are removed, by how often each was updated and how many steps ago it last was."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedFor:
    """Removes rows that were not updated for more than `steps` steps."""

    steps: int

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def expired(self, uses: NDArray[np.uint32], unused: NDArray[np.int64]) -> NDArray[np.bool_]:  # noqa: ARG002
        """Which rows are removed, by how often each was updated and how many steps ago it last was."""
        return unused > self.steps


@dataclass(frozen=True, slots=True)
class FewerThan:
    """Removes rows that were updated fewer than `uses` times, and not for more than `steps` steps."""

    uses: int
    steps: int

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        if self.uses < 1:
            raise ModelError(f"FewerThan needs at least 1 use, not {self.uses}")

    def expired(self, uses: NDArray[np.uint32], unused: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows are removed, by how often each was updated and how many steps ago it last was."""
        return (uses < self.uses) & (unused > self.steps)


@dataclass(frozen=True, slots=True)
class LowScore:
    """Removes rows whose uses, halved every `half_life` steps since the last one, are below `score`."""

    score: float
    half_life: float

    def __post_init__(self) -> None:
        if not (self.score > 0 and self.half_life > 0):
            raise ModelError(f"a score and its half-life must be positive, not {self.score} and {self.half_life}")

    def expired(self, uses: NDArray[np.uint32], unused: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows are removed, by how often each was updated and how many steps ago it last was."""
        return uses * np.exp2(-unused / self.half_life) < self.score


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ModelError(f"rows can be removed after 1 step without use or more, not {steps}")
