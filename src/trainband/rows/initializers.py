"""Initializers: the values of a row before it is trained, as a pure function of the row's key.

The key is a hash of the seed, the table and the id. Any ps computes the same row, in any order and after any restart,
so a row needs no memory until it is trained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainband.errors import ModelError
from trainband.rows.random_bits import bits


class RowInitializer(Protocol):
    """The seam of initializers."""

    def rows(self, keys: NDArray[np.uint64], dim: int) -> NDArray[np.float32]:
        """The rows of these keys: (n,) -> (n, dim)."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Every value is `value`."""

    value: float = 0.0

    def __post_init__(self) -> None:
        _check("value", self.value)

    def rows(self, keys: NDArray[np.uint64], dim: int) -> NDArray[np.float32]:
        """The rows of these keys: (n,) -> (n, dim)."""
        return np.full((len(keys), dim), self.value, np.float32)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Values between `low` and `high`; with one argument, between 0 and it, like `jax.nn.initializers.uniform`."""

    high: float = 0.01
    low: float = 0.0

    def __post_init__(self) -> None:
        _check("high", self.high)
        _check("low", self.low)

    def rows(self, keys: NDArray[np.uint64], dim: int) -> NDArray[np.float32]:
        """The rows of these keys: (n,) -> (n, dim)."""
        out = (bits(keys, dim) >> np.uint32(8)).astype(np.float32)
        out *= np.float32((self.high - self.low) * 2.0**-24)
        out += np.float32(self.low)
        return out


@dataclass(frozen=True, slots=True)
class Normal:
    """Values of a normal distribution around 0."""

    standard_deviation: float = 0.01

    def __post_init__(self) -> None:
        _check("standard_deviation", self.standard_deviation)

    def rows(self, keys: NDArray[np.uint64], dim: int) -> NDArray[np.float32]:
        """The rows of these keys: (n,) -> (n, dim)."""
        return _normal(bits(keys, dim), 1.0, self.standard_deviation)


@dataclass(frozen=True, slots=True)
class TruncatedNormal:
    """Values of a normal distribution around 0, of which those beyond `bound` standard deviations are left out."""

    standard_deviation: float = 0.01
    bound: float = 2.0

    def __post_init__(self) -> None:
        _check("standard_deviation", self.standard_deviation)
        if not self.bound > 0:
            raise ModelError(f"the bound of a truncated normal distribution must be positive, not {self.bound}")

    def rows(self, keys: NDArray[np.uint64], dim: int) -> NDArray[np.float32]:
        """The rows of these keys: (n,) -> (n, dim)."""
        return _normal(bits(keys, dim), math.erf(self.bound / math.sqrt(2.0)), self.standard_deviation)


def _check(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ModelError(f"{name} of an initializer must be finite, not {value}")


_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06),
    *(0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844),
    *(0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def _normal(random: NDArray[np.uint32], share: float, standard_deviation: float) -> NDArray[np.float32]:
    """Normal values from the inverse of the distribution function, of whose range `share` around 0 is used.

    In float64, because logarithms differ in the last bits between processors; rounding to float32 removes that.
    Source: Giles 2010, Approximating the erfinv function.
    """
    place = ((random >> np.uint32(9)) + 0.5) * (2.0**-22 * share) - share
    w = -np.log((1.0 - place) * (1.0 + place))
    central = w < 5.0
    out = np.polyval(_CENTRE, w - 2.5)
    if not central.all():
        out = np.where(central, out, np.polyval(_TAIL, np.sqrt(w) - 3.0))
    out *= place
    out *= math.sqrt(2.0) * standard_deviation
    return out.astype(np.float32)
