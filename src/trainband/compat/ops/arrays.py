"""What the functions of operations share: NumPy or JAX, and arguments whose values must be known."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class ArgumentError(ValueError):
    """An argument is wrong, whatever the sizes that are still unknown turn out to be."""


def is_computed(value: Any) -> bool:
    """Whether JAX computes a value, so that no shape may depend on it."""
    return isinstance(value, jax.core.Tracer | jax.Array)


def numpy_or_jax(*values: Any) -> Any:
    """Return NumPy if all values are its arrays, else `jax.numpy`, so that known values stay known."""
    return jnp if any(map(is_computed, values)) else np


def sizes_of(value: Any, what: str) -> tuple[int, ...]:
    """The sizes in an argument.

    Raises:
      ValueError: they are computed.
    """
    if is_computed(value):
        raise ValueError(
            f"{what} is computed from values: shapes must follow from constants and other shapes, because a run is "
            "compiled before it begins."
        )
    return tuple(int(one) for one in np.ravel(value))


def axes_of(axis: Any) -> tuple[int, ...] | None:
    """The axes that an argument names; `None` for all."""
    return None if axis is None else sizes_of(axis, "an axis")


def axis_of(axis: Any, otherwise: int = 0) -> int:
    """The one axis that an argument names."""
    return (axes_of(axis) or (otherwise,))[0]


def is_floating(value: Any) -> bool:
    """Whether an array holds floating-point numbers."""
    return bool(jnp.issubdtype(value.dtype, jnp.floating))


def is_integer(value: Any) -> bool:
    """Whether an array holds whole numbers."""
    return bool(np.issubdtype(value.dtype, np.integer))


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
