"""Clipping: by value, by an array's own norm, and by the norm of several together."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, axes_of
from trainband.compat.ops.math import maximum, minimum
from trainband.compat.ops.table import op


@op(
    "tf.clip_by_value",
    type="clip_by_value",
    tensors="t clip_value_min clip_value_max",
    alike="t clip_value_min clip_value_max",
    by_row="t",
    folds=True,
)
def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any) -> Any:
    """Limit each element to an interval."""
    return _shaped_as(t, maximum(minimum(t, clip_value_max), clip_value_min))


def _shaped_as(t: Any, clipped: Any) -> Any:
    """What was clipped, if it has the shape of what it was."""
    if np.shape(clipped) != np.shape(t):
        raise ArgumentError(f"Dimensions must be equal, but are {np.shape(t)} and {np.shape(clipped)}")
    return clipped


@op("tf.clip_by_norm", type="clip_by_norm", tensors="t clip_norm", like={"clip_norm": "t"}, by_row="t")
def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None) -> Any:
    """Scale down so that the Euclidean norm is at most `clip_norm`."""
    squares = jnp.sum(t * t, axis=axes_of(axes), keepdims=True)
    safe = jnp.where(squares > 0, squares, 1)
    norms = jnp.where(squares > 0, jnp.sqrt(safe), squares)
    return _shaped_as(t, t * clip_norm / jnp.maximum(norms, clip_norm))


@op(v1_names="tf.clip_by_average_norm", type="clip_by_average_norm", tensors="t clip_norm", like={"clip_norm": "t"})
def clip_by_average_norm(t: Any, clip_norm: Any) -> Any:
    """Scale down so that the Euclidean norm, divided by the number of elements, is at most `clip_norm`."""
    return t * clip_norm * jnp.minimum(t.size / jnp.sqrt(jnp.sum(t * t)), 1 / clip_norm)


@op(v1_names="tf.global_norm", type="global_norm", lists="t_list")
def global_norm(t_list: Any) -> Any:
    """The Euclidean norm of several arrays together."""
    total = t_list[0].dtype.type(0)
    for one in t_list:
        total = total + jnp.sum(one * one)
    return jnp.sqrt(total)


@op("", type="clip_by_global_norm", tensors="t use_norm clip_norm", like={"clip_norm": "use_norm"})
def scaled_to_norm(t: Any, use_norm: Any, clip_norm: Any) -> Any:
    """Scale one of several arrays whose global norm is `use_norm`, so that this becomes at most `clip_norm`."""
    scale = clip_norm * jnp.minimum(1 / use_norm, 1 / clip_norm)
    # A norm that is infinite or NaN makes the result NaN, so that divergence is not hidden.
    return t * (scale + (use_norm - use_norm)).astype(t.dtype)
