"""Row optimizers: how a gradient changes a row of a table and the row's optimizer state.

Each is lazy: rows that a step does not touch stay as they are. The store calls `update` with blocks of rows that fit
the processor's cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainband.errors import ModelError

Floats = NDArray[np.float32]
State = tuple[Floats, ...]


class RowOptimizer(Protocol):
    """The seam of row optimizers; any elementwise transformation of gathered rows fits."""

    def state(self, dim: int) -> tuple[tuple[int, float], ...]:
        """The state of a row of `dim` values: width and first value of each of its arrays."""
        ...

    def update(self, rows: Floats, state: State, gradients: Floats, count: NDArray[np.uint32]) -> tuple[Floats, State]:
        """The new rows and state.

        Args:
          rows: (n, dim); may be overwritten.
          state: an (n, width) array for each that `state` names; may be overwritten.
          gradients: (n, dim); left as they are.
          count: (n,) updates of each row, this one included.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sgd:
    """Stochastic gradient descent.

    Attributes:
      learning_rate: of every step.
      l2: times the row is added to its gradient.
      max_norm: the largest Euclidean norm of a row after an update; no limit if None.
    """

    learning_rate: float
    l2: float = 0.0
    max_norm: float | None = None

    def __post_init__(self) -> None:
        _check(self.learning_rate, self.l2, self.max_norm)

    def state(self, dim: int) -> tuple[tuple[int, float], ...]:  # noqa: ARG002
        """None."""
        return ()

    def update(self, rows: Floats, state: State, gradients: Floats, count: NDArray[np.uint32]) -> tuple[Floats, State]:  # noqa: ARG002
        """The new rows and state."""
        rows -= np.float32(self.learning_rate) * _decayed(gradients, rows, self.l2)
        return _bounded(rows, self.max_norm), state


@dataclass(frozen=True, slots=True)
class Adagrad:
    """Adagrad with an accumulator for each value, like `optax.adagrad`.

    Attributes:
      learning_rate: of every step.
      initial: the accumulator's first value.
      epsilon: added to the accumulator under the square root.
      l2: times the row is added to its gradient.
      max_norm: the largest Euclidean norm of a row after an update; no limit if None.
    """

    learning_rate: float
    initial: float = 0.1
    epsilon: float = 1e-7
    l2: float = 0.0
    max_norm: float | None = None

    def __post_init__(self) -> None:
        _check(self.learning_rate, self.l2, self.max_norm)
        _check_accumulator(self.initial, self.epsilon)

    def state(self, dim: int) -> tuple[tuple[int, float], ...]:
        """The sums of squares."""
        return ((dim, self.initial),)

    def update(self, rows: Floats, state: State, gradients: Floats, count: NDArray[np.uint32]) -> tuple[Floats, State]:  # noqa: ARG002
        """The new rows and state."""
        gradients = _decayed(gradients, rows, self.l2)
        (sums,) = state
        change = np.square(gradients)
        sums += change
        np.add(sums, np.float32(self.epsilon), out=change)
        np.sqrt(change, out=change)
        np.divide(gradients, change, out=change)
        change *= np.float32(self.learning_rate)
        rows -= change
        return _bounded(rows, self.max_norm), state


@dataclass(frozen=True, slots=True)
class RowwiseAdagrad:
    """Adagrad with one accumulator for a row, of the mean square of its gradient, as in TorchRec.

    Attributes:
      learning_rate: of every step.
      initial: the accumulator's first value.
      epsilon: added to the accumulator's square root.
      l2: times the row is added to its gradient.
      max_norm: the largest Euclidean norm of a row after an update; no limit if None.
    """

    learning_rate: float
    initial: float = 0.0
    epsilon: float = 1e-8
    l2: float = 0.0
    max_norm: float | None = None

    def __post_init__(self) -> None:
        _check(self.learning_rate, self.l2, self.max_norm)
        _check_accumulator(self.initial, self.epsilon)

    def state(self, dim: int) -> tuple[tuple[int, float], ...]:  # noqa: ARG002
        """The sum of mean squares."""
        return ((1, self.initial),)

    def update(self, rows: Floats, state: State, gradients: Floats, count: NDArray[np.uint32]) -> tuple[Floats, State]:  # noqa: ARG002
        """The new rows and state."""
        gradients = _decayed(gradients, rows, self.l2)
        (sums,) = state
        sums += _squared_norms(gradients) / np.float32(rows.shape[1])
        rate = np.float32(self.learning_rate) / (np.sqrt(sums) + np.float32(self.epsilon))
        rows -= gradients * rate
        return _bounded(rows, self.max_norm), state


@dataclass(frozen=True, slots=True)
class LazyAdam:
    """Adam whose moments decay only when their row is updated; the correction of the bias counts the row's updates.

    Attributes:
      learning_rate: of every step.
      beta1: decay of the mean of gradients.
      beta2: decay of the mean of their squares.
      epsilon: added to the square root.
      l2: times the row is added to its gradient.
      max_norm: the largest Euclidean norm of a row after an update; no limit if None.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    l2: float = 0.0
    max_norm: float | None = None

    def __post_init__(self) -> None:
        _check(self.learning_rate, self.l2, self.max_norm)
        if not (0.0 <= self.beta1 < 1.0 and 0.0 <= self.beta2 < 1.0 and self.epsilon > 0.0):
            raise ModelError(
                "beta1 and beta2 of LazyAdam must be at least 0 and below 1, and epsilon positive,"
                f" not {self.beta1}, {self.beta2} and {self.epsilon}"
            )

    def state(self, dim: int) -> tuple[tuple[int, float], ...]:
        """The means of gradients and of their squares."""
        return ((dim, 0.0), (dim, 0.0))

    def update(self, rows: Floats, state: State, gradients: Floats, count: NDArray[np.uint32]) -> tuple[Floats, State]:
        """The new rows and state."""
        gradients = _decayed(gradients, rows, self.l2)
        mean, square = state
        mean *= np.float32(self.beta1)
        mean += np.float32(1.0 - self.beta1) * gradients
        square *= np.float32(self.beta2)
        change = np.square(gradients)
        change *= np.float32(1.0 - self.beta2)
        square += change
        first = self.learning_rate / (1.0 - self.beta1 ** count.astype(np.float64))
        second = 1.0 / (1.0 - self.beta2 ** count.astype(np.float64))
        np.multiply(square, second.astype(np.float32)[:, np.newaxis], out=change)
        np.sqrt(change, out=change)
        change += np.float32(self.epsilon)
        np.divide(mean, change, out=change)
        change *= first.astype(np.float32)[:, np.newaxis]
        rows -= change
        return _bounded(rows, self.max_norm), state


@dataclass(frozen=True, slots=True)
class Ftrl:
    """FTRL-Proximal, whose l1 makes values exactly zero.

    Source: McMahan et al. 2013, Ad Click Prediction: a View from the Trenches, algorithm 1.

    Attributes:
      learning_rate: alpha of the paper.
      beta: added to the square root.
      initial: the first sum of squares.
      l1: strength of L1 regularisation.
      l2: strength of L2 regularisation.
      max_norm: the largest Euclidean norm of a row after an update; no limit if None.
    """

    learning_rate: float
    beta: float = 1.0
    initial: float = 0.0
    l1: float = 0.0
    l2: float = 0.0
    max_norm: float | None = None

    def __post_init__(self) -> None:
        _check(self.learning_rate, self.l2, self.max_norm)
        if not (self.l1 >= 0.0 and self.beta >= 0.0 and self.initial >= 0.0 and self.beta + self.initial > 0.0):
            raise ModelError(
                "l1, beta and initial of Ftrl must be at least 0, and one of the last two above,"
                f" not {self.l1}, {self.beta} and {self.initial}"
            )

    def state(self, dim: int) -> tuple[tuple[int, float], ...]:
        """The z and n of the paper."""
        return ((dim, 0.0), (dim, self.initial))

    def update(self, rows: Floats, state: State, gradients: Floats, count: NDArray[np.uint32]) -> tuple[Floats, State]:  # noqa: ARG002
        """The new rows and state."""
        linear, sums = state
        rate = np.float32(1.0 / self.learning_rate)
        before = np.sqrt(sums)
        sums += np.square(gradients)
        after = np.sqrt(sums)
        linear += gradients
        linear -= (after - before) * rate * rows
        after += np.float32(self.beta)
        after *= rate
        after += np.float32(self.l2)
        np.divide(np.copysign(np.float32(self.l1), linear) - linear, after, out=rows)
        rows[np.abs(linear) <= self.l1] = 0.0
        return _bounded(rows, self.max_norm), state


def _check(learning_rate: float, l2: float, max_norm: float | None) -> None:
    if callable(learning_rate):
        raise ModelError("the learning rate of a table is a number; schedules are for the params only.")
    if not (math.isfinite(learning_rate) and learning_rate > 0.0):
        raise ModelError(f"the learning rate of a table must be positive and finite, not {learning_rate}")
    if not (math.isfinite(l2) and l2 >= 0.0):
        raise ModelError(f"l2 of a table must be at least 0 and finite, not {l2}")
    if max_norm is not None and not max_norm > 0.0:
        raise ModelError(f"max_norm of a table must be positive, not {max_norm}")


def _check_accumulator(initial: float, epsilon: float) -> None:
    if not (initial >= 0.0 and epsilon > 0.0):
        raise ModelError(f"an accumulator starts at 0 or above, and epsilon is positive, not {initial} and {epsilon}")


def _decayed(gradients: Floats, rows: Floats, l2: float) -> Floats:
    return gradients + np.float32(l2) * rows if l2 else gradients


def _squared_norms(rows: Floats) -> Floats:
    """(n, dim) -> (n, 1)."""
    out: Floats = np.einsum("ij,ij->i", rows, rows)[:, np.newaxis]
    return out


def _bounded(rows: Floats, max_norm: float | None) -> Floats:
    if max_norm is not None:
        norms = np.sqrt(_squared_norms(rows))
        rows *= np.float32(max_norm) / np.maximum(norms, np.float32(max_norm))
    return rows
