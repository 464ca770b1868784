"""Clipping: by value, by a tensor's own norm, and by the norm of several together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert, record_tensor
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.operations.arithmetic import axes_of, maximum, minimum


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Any:
    """Each element between two bounds."""
    if isinstance(t, IndexedSlices):
        return IndexedSlices(clip_by_value(t.values, clip_value_min, clip_value_max, name), t.indices, t.dense_shape)
    return maximum(minimum(t, clip_value_max), clip_value_min, name=name or "clip_by_value")


def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> Any:
    """Scaled down so that the Euclidean norm is at most `clip_norm`."""
    if isinstance(t, IndexedSlices):
        return IndexedSlices(clip_by_norm(t.values, clip_norm, axes, name), t.indices, t.dense_shape)
    where = axes_of(axes)
    tensor = convert(t)

    def compute(x: Any, most: Any) -> Any:
        squares = jnp.sum(x * x, axis=where, keepdims=True)
        safe = jnp.where(squares > 0, squares, 1)
        norms = jnp.where(squares > 0, jnp.sqrt(safe), squares)
        return x * most / jnp.maximum(norms, most)

    return record_tensor("clip_by_norm", compute, [tensor, convert(clip_norm, tensor.dtype)], name=name)


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """The Euclidean norm of several tensors together."""
    tensors = [_values(one) for one in t_list if one is not None]

    def compute(*values: Any) -> Any:
        total = values[0].dtype.type(0)
        for value in values:
            total = total + jnp.sum(value * value)
        return jnp.sqrt(total)

    return record_tensor("global_norm", compute, tensors, name=name)


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], Tensor]:
    """All scaled down alike, so that their norm together is at most `clip_norm`; and what that was before."""
    norm = convert(use_norm) if use_norm is not None else global_norm(t_list)
    most = convert(clip_norm, norm.dtype)

    def compute(x: Any, whole: Any, limit: Any) -> Any:
        scale = limit * jnp.minimum(1 / whole, 1 / limit)
        return x * (scale + (whole - whole)).astype(x.dtype)  # a norm that is not finite makes everything so

    def clipped(one: Any) -> Any:
        if one is None:
            return None
        scaled = record_tensor("clip_by_global_norm", compute, [_values(one), norm, most], name=name)
        return IndexedSlices(scaled, one.indices, one.dense_shape) if isinstance(one, IndexedSlices) else scaled

    return [clipped(one) for one in t_list], norm


def _values(one: Any) -> Tensor:
    return one.values if isinstance(one, IndexedSlices) else convert(one)
