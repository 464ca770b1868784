"""Functions of each element that version 1 does not have."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special

from trainband.compat.tf2.operations.defining import operation

erfinv = operation("x", kinds={"x": "float"})(lambda x: special.erfinv(x))
erfcinv = operation("x", kinds={"x": "float"})(lambda x: special.erfinv(1 - x))
ndtri = operation("x", kinds={"x": "float"})(lambda x: special.ndtri(x))
bessel_i0 = operation("x", kinds={"x": "float"})(lambda x: special.i0(x))
bessel_i0e = operation("x", kinds={"x": "float"})(lambda x: special.i0e(x))
bessel_i1 = operation("x", kinds={"x": "float"})(lambda x: special.i1(x))
bessel_i1e = operation("x", kinds={"x": "float"})(lambda x: special.i1e(x))
expint = operation("x", kinds={"x": "float"})(lambda x: special.expi(x))
spence = operation("x", kinds={"x": "float"})(lambda x: special.spence(x))


@operation("x", kinds={"x": "float complex"})
def reciprocal_no_nan(x: Any) -> Any:
    """Reciprocals; 0 of 0."""
    zero = x == 0
    return jnp.where(zero, 0, 1 / jnp.where(zero, 1, x))


@operation("x1 x2", alike="x1 x2", kinds={"x1": "float"})
def nextafter(x1: Any, x2: Any) -> Any:
    """The next number of the dtype in the direction of another."""
    return jnp.nextafter(x1, x2)


@operation("features", kinds={"features": "float"})
def gelu(features: Any, approximate: bool = False) -> Any:
    """X times the probability that a normal number is less than x."""
    return jax.nn.gelu(features, approximate=bool(approximate))


@operation("tensor", optional="axis")
def normalize(tensor: Any, ord: Any = "euclidean", axis: Any = None) -> Any:  # noqa: A002 - TensorFlow's name
    """A tensor divided by its norm."""
    return tensor / norm_of(tensor, ord, axis)


def norm_of(tensor: Any, order: Any, axis: Any) -> Any:
    """The norm along axes, which stay with size 1."""
    along = tuple(range(jnp.ndim(tensor))) if axis is None else axis
    along = tuple(along) if isinstance(along, list | tuple) else along
    if order in ("euclidean", "fro", 2):
        return jnp.sqrt(jnp.sum(jnp.abs(tensor) ** 2, along, keepdims=True))
    if order in (1, jnp.inf):
        return (jnp.sum if order == 1 else jnp.max)(jnp.abs(tensor), along, keepdims=True)
    return jnp.sum(jnp.abs(tensor) ** order, along, keepdims=True) ** (1 / order)
