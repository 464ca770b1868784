"""What the functions of operations share: NumPy or JAX, and arguments whose values must be known."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class ArgumentError(ValueError):
    """An argument is wrong, whatever the sizes that are still unknown turn out to be."""


class ComputedError(ValueError):
    """A shape depends on a value that JAX computes: it has to be known before the rest is traced."""


NEEDS_VALUE = (ComputedError, jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError)  # fmt: skip
"""What is raised where Python needs a value that is only traced."""


def is_computed(value: Any) -> bool:
    """Whether JAX computes a value, so that no shape may depend on it."""
    return isinstance(value, jax.core.Tracer | jax.Array)


def numpy_or_jax(*values: Any) -> Any:
    """Return NumPy if all values are its arrays, else `jax.numpy`, so that known values stay known."""
    return jnp if any(map(is_computed, values)) else np


def known(value: Any, what: str) -> np.ndarray[Any, Any]:
    """A value on which shapes depend, as NumPy's array.

    Raises:
      ComputedError: it is computed.
    """
    if is_computed(value):
        raise ComputedError(
            f"{what} is computed from values: shapes must follow from constants and other shapes, because a run is "
            "compiled before it begins."
        )
    return np.asarray(value)


def limit_of(*numbers: Any) -> Any:
    """The least number that is greater than all of some whole numbers, and not negative."""
    xp = numpy_or_jax(*numbers)
    largest = [xp.max(one, initial=-1) + 1 for one in numbers]
    return functools.reduce(xp.maximum, largest)


def sizes_of(value: Any, what: str) -> tuple[int, ...]:
    """The sizes in an argument.

    Raises:
      ComputedError: they are computed.
    """
    return tuple(int(one) for one in np.ravel(known(value, what)))


def axes_of(axis: Any) -> tuple[int, ...] | None:
    """The axes that an argument names; `None` for all."""
    return None if axis is None else sizes_of(axis, "an axis")


def axis_of(axis: Any, otherwise: int = 0) -> int:
    """The one axis that an argument names."""
    return (axes_of(axis) or (otherwise,))[0]


def is_floating(value: Any) -> bool:
    """Whether an array holds floating-point numbers."""
    return bool(jnp.issubdtype(value.dtype, jnp.floating))


def conjugate(value: Any) -> Any:
    """The conjugate of complex numbers, and all others as they are.

    TensorFlow's derivative by a complex number is the conjugate of JAX's, also where it is passed to an operation.
    """
    return jnp.conj(value) if np.issubdtype(value.dtype, np.complexfloating) else value


def is_integer(value: Any) -> bool:
    """Whether an array holds whole numbers."""
    return bool(np.issubdtype(value.dtype, np.integer))


@jax.custom_jvp
def with_value(computed: Any, given: Any) -> Any:  # noqa: ARG001 - it counts in the derivative
    """Give a value, with the derivative of another one."""
    return given


@with_value.defjvp
def _derivative_of_computed(values: Any, tangents: Any) -> tuple[Any, Any]:
    return values[1], tangents[0]


def demand_axes(value: Any, least: int, what: str = "input") -> None:
    """Refuse an array that has fewer axes.

    Raises:
      ArgumentError: it has.
    """
    if np.ndim(value) < least:
        raise ArgumentError(
            f"Shape must be at least rank {least} but is rank {np.ndim(value)}: {what} must be at least {least}-dim, "
            f"received shape: {list(np.shape(value))}"
        )
