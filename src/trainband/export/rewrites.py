"""Rewrites of operations into simpler ones, for formats that get them wrong; each is a `Rewrite`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def padded(operand: Any, value: Any, *, padding_config: Any) -> Any:
    """`jax.lax.pad` by concatenation; `None` if it crops, or pads an axis of unknown length."""
    for axis, (low, high, interior) in enumerate(padding_config):
        if (low, high, interior) == (0, 0, 0):
            continue
        length = operand.shape[axis]
        if not isinstance(length, int) or min(low, high) < 0:
            return None
        if interior:
            operand = _spread(operand, value, axis, int(interior))

        def strip(count: int, axis: int = axis, operand: Any = operand) -> list[Any]:
            shape = [*operand.shape[:axis], int(count), *operand.shape[axis + 1 :]]
            return [jnp.broadcast_to(jnp.asarray(value, operand.dtype), shape)] if count else []

        operand = jax.lax.concatenate([*strip(low), operand, *strip(high)], axis)
    return operand


def product_of_integers(left: Any, right: Any, *, preferred_element_type: Any) -> tuple[Any, Any] | None:
    """Factors in float32 for a product of 8-bit integers, which no format computes as JAX does; `None` for others.

    The sums are exact below 2^24; larger ones are rounded to float32.
    """
    small = (jnp.dtype(jnp.int8), jnp.dtype(jnp.uint8))
    if left.dtype in small and right.dtype in small and jnp.issubdtype(preferred_element_type, jnp.integer):
        return left.astype(jnp.float32), right.astype(jnp.float32)
    return None


def convolution(left: Any, right: Any, *, preferred_element_type: Any, **params: Any) -> Any:
    """A convolution of 8-bit integers, or a transposed one, as a plain one; `None` if it is one already."""
    floats = product_of_integers(left, right, preferred_element_type=preferred_element_type)
    if floats is None:
        return undilated_convolution(left, right, preferred_element_type=preferred_element_type, **params)
    plain = undilated_convolution(*floats, preferred_element_type=jnp.dtype(jnp.float32), **params)
    if plain is None:
        plain = jax.lax.conv_general_dilated_p.bind(*floats, preferred_element_type=jnp.dtype(jnp.float32), **params)
    return plain.astype(preferred_element_type)


def dot_of_integers(left: Any, right: Any, *, preferred_element_type: Any, **params: Any) -> Any:
    """A product of matrices of 8-bit integers; `None` for others."""
    floats = product_of_integers(left, right, preferred_element_type=preferred_element_type)
    if floats is None:
        return None
    product = jax.lax.dot_general_p.bind(*floats, preferred_element_type=jnp.dtype(jnp.float32), **params)
    return product.astype(preferred_element_type)


def undilated_convolution(left: Any, right: Any, *, lhs_dilation: Any, dimension_numbers: Any, **params: Any) -> Any:
    """A transposed convolution as a plain one, of an image with zeros between its pixels."""
    if all(step == 1 for step in lhs_dilation):
        return None
    spatial = dimension_numbers.lhs_spec[2:]
    if not all(isinstance(left.shape[axis], int) for axis in spatial):
        return None
    zero = jnp.zeros((), left.dtype)
    for axis, step in zip(spatial, lhs_dilation, strict=True):
        if step != 1:
            left = _spread(left, zero, axis, int(step) - 1)
    return jax.lax.conv_general_dilated_p.bind(
        left, right, lhs_dilation=(1,) * len(spatial), dimension_numbers=dimension_numbers, **params
    )


def _spread(operand: Any, value: Any, axis: int, count: int) -> Any:
    """Inserts `count` values between the rows along an axis."""
    length = operand.shape[axis]
    shape = list(operand.shape)
    rows = operand.reshape([*shape[: axis + 1], 1, *shape[axis + 1 :]])
    between = jnp.broadcast_to(jnp.asarray(value, operand.dtype), [*shape[: axis + 1], count, *shape[axis + 1 :]])
    spread = jax.lax.concatenate([rows, between], axis + 1)
    flat = spread.reshape([*shape[:axis], length * (count + 1), *shape[axis + 1 :]])
    return jax.lax.split(flat, [length * (count + 1) - count, count], axis)[0]
