"""Facts about an array in two programs that differ only in their number of examples.

Also the input of a rule: the equation that makes the array, in both programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same array in both programs, independent of the batch.

    Attributes:
      constant: whether it is independent of the other arguments too.
      numbers: a scalar's value in both programs, if known.
    """

    constant: bool = False
    numbers: tuple[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """A known number, the same everywhere in a program, but different in the two programs."""

    numbers: tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Examples:
    """An array whose elements along one axis depend on one example each, and not on its position in the batch.

    Random numbers from a key among the other arguments count as such: equally distributed, if not equal.

    Attributes:
      axis: of length outer x examples x inner, row-major.
      power: the value is (number of examples) ** power times a function of the example.
      never: a boolean that is false everywhere.
      free: the axis may be split into outer, examples and inner in any way: zeros, or random numbers.
    """

    axis: int
    outer: int = 1
    inner: int = 1
    power: int = 0
    never: bool = False
    free: bool = False

    @property
    def place(self) -> tuple[int, int, int]:
        return self.axis, self.outer, self.inner


@dataclass(frozen=True, slots=True)
class Position:
    """Each example's position in the batch along an axis; with `column`, only in that column of the last axis."""

    axis: int
    column: int | None = None


@dataclass(frozen=True, slots=True)
class Mean:
    """Something fixed, plus a mean over all examples; with a power, only the mean, times examples ** power."""

    power: int = 0


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing is known, with the reason; `certain`: a sum over the batch is surely not used as a mean of examples."""

    reason: str
    certain: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Numbers(Unknown):
    """A few known numbers that differ between the programs, such as a shape as an array: only for computing."""

    numbers: tuple[Any, Any] = (None, None)


MOST_NUMBERS = 8

Value = Fixed | Size | Examples | Position | Mean | Unknown
Result = Value | list[Value] | str
"""The result of a rule: a value for all outputs, one for each, or why there is none."""


@dataclass(frozen=True, slots=True)
class Step:
    """The same equation in both programs.

    Attributes:
      derivatives: whether to follow derivatives by custom_jvp: not inside of one.
    """

    equations: tuple[Any, Any]
    sizes: tuple[int, int]
    derivatives: bool

    @property
    def name(self) -> str:
        return str(self.equations[0].primitive.name)

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.equations[0].params)

    @property
    def floating(self) -> bool:
        return bool(jnp.issubdtype(self.equations[0].outvars[0].aval.dtype, jnp.floating))

    def shapes(self, operand: int = 0) -> list[tuple[int, ...]]:
        return [equation.invars[operand].aval.shape for equation in self.equations]

    def new_shapes(self) -> list[tuple[int, ...]]:
        return [equation.outvars[0].aval.shape for equation in self.equations]

    def pair(self, key: str) -> tuple[Any, Any]:
        return self.equations[0].params[key], self.equations[1].params[key]

    def same(self, *but: str) -> bool:
        first, second = (equation.params for equation in self.equations)
        return first.keys() == second.keys() and all(alike(first[k], second[k]) for k in first if k not in but)

    def same_but_along(self, axis: int, *keys: str) -> bool:
        """Whether these tuples, with a number for each axis, are equal except for that axis."""
        pairs = [self.pair(key) for key in keys if self.params[key] is not None]
        return self.same(*keys) and all(
            a[:axis] == b[:axis] and a[axis + 1 :] == b[axis + 1 :] and len(a) == len(b) for a, b in pairs
        )


Rule = Callable[[Step, list[Value]], Result]


def is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def alike(first: Any, second: Any) -> bool:
    """Whether two parameters of equations, or two constants, are surely equal."""
    if first is second:
        return True
    if is_program(first) and is_program(second):  # such as how a scatter combines values
        return str(first) == str(second) and alike(list(getattr(first, "consts", ())), getattr(second, "consts", ()))
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)):
        return len(first) == len(second) and all(map(alike, first, second))
    if isinstance(first, (np.ndarray, np.generic, jax.Array, float)):
        if getattr(first, "dtype", None) != getattr(second, "dtype", None) or np.shape(first) != np.shape(second):
            return False
        if isinstance(first, jax.Array) and jnp.issubdtype(first.dtype, jax.dtypes.extended):
            return False
        a, b = np.asarray(first), np.asarray(second)
        return a.tobytes() == b.tobytes()
    return type(first) is type(second) and bool(first == second)


def known_of_constants(first: Any, second: Any, sizes: tuple[int, int]) -> Value:
    """Returns what is known of a constant in the two programs."""
    if alike(first, second):
        scalar = np.shape(first) == () and isinstance(first, (np.ndarray, np.generic, float, int))
        return Fixed(constant=True, numbers=(first, second) if scalar else None)
    if not (_is_known(first) and _is_known(second)):
        return Unknown("a constant depends on the number of examples")
    a, b = np.asarray(first), np.asarray(second)
    if a.shape == b.shape == ():
        return Size((a[()], b[()]))
    if a.ndim == b.ndim and [a.shape[i] for i in differing(a.shape, b.shape)] == [sizes[0]]:
        axis = differing(a.shape, b.shape)[0]
        rows = [value.take([0], axis) for value in (a, b)]
        if alike(*rows) and all((value == row).all() for value, row in zip((a, b), rows, strict=True)):
            return Examples(axis, never=a.dtype == bool and not a.any())
        if a.ndim == 1 and a.dtype.kind in "iu" and all((value == np.arange(len(value))).all() for value in (a, b)):
            return Position(axis)
    if a.shape == b.shape and a.size <= MOST_NUMBERS:
        return Numbers("a constant depends on the number of examples", (a, b))
    return Unknown("a constant depends on the number of examples")


def _is_known(value: Any) -> bool:
    """Whether an array's values can be read."""
    if isinstance(value, jax.Array):
        return not isinstance(value, jax.core.Tracer) and not jnp.issubdtype(value.dtype, jax.dtypes.extended)
    return isinstance(value, (np.ndarray, np.generic, float, int))


def differing(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]


def join(first: Value, second: Value) -> Value:
    """Returns what is known of a value that may be either."""
    match first, second:
        case Unknown(), _:
            return first
        case _, Unknown():
            return second
        case Fixed(), Fixed():
            return first if first == second else Fixed(first.constant and second.constant)
        case Examples(), Examples() if first.place == second.place and first.power == second.power:
            return first if first == second else replace(first, never=False, free=False)
        case ((Mean(power=0) | Fixed()), (Mean(power=0) | Fixed())):
            return Mean()
    return first if first == second else Unknown("the kind of a value varies")
