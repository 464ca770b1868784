"""Admission: which ids get a row. An id without one reads its initial value, and its gradients are dropped."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.errors import ModelError


@dataclass(frozen=True, slots=True)
class AfterCount:
    """An id gets a row at its `count`-th update.

    Updates are counted in a sketch of constant size, in which ids may share a counter: an id can be admitted early.

    Attributes:
      count: updates, the one that makes the row included.
      counters: of one byte each, of a count; use about as many as ids arrive in a window.
      window: updates of ids after which a count is halved, so that old ids do not fill the sketch; 10 times `counters`
        if not given.
    """

    count: int
    counters: int = 1 << 22
    window: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 255:
            raise ModelError(f"AfterCount counts from 1 to 255 updates, not {self.count}")
        if self.counters < 1:
            raise ModelError(f"AfterCount needs at least one counter, not {self.counters}")
        if self.window is not None and self.window < 1:
            raise ModelError(f"the window of AfterCount must be at least 1 update, not {self.window}")


@dataclass(frozen=True, slots=True)
class WithProbability:
    """An id gets a row at each of its updates with this probability, which needs no memory."""

    probability: float

    def __post_init__(self) -> None:
        if not 0.0 < self.probability <= 1.0:
            raise ModelError(f"a probability of admission must be above 0 and at most 1, not {self.probability}")


Admission = AfterCount | WithProbability
