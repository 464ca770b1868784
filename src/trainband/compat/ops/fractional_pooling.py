"""Pooling over windows of random sizes, so that the result is smaller by any ratio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, is_floating, sizes_of
from trainband.compat.ops.dtypes import as_dtype, int64
from trainband.compat.ops.table import op

Reduce = Callable[[Any, Any, int], Any]
"""Of the elements of all windows, which of them count, and the axis of a window."""


@op("", type="PoolingSequence", tensors="value", random=True)
def pooling_sequence(
    key: Any, value: Any, axis: int, ratio: float, pseudo_random: bool, fixed: int | None = None, dtype: Any = int64
) -> Any:
    """Where the windows along an axis begin, and the end: steps of two sizes that differ by one, in random order.

    Args:
      fixed: a seed for the same order in each run.
    """
    if ratio < 1:
        raise ArgumentError(f"pooling_ratio must be at least 1, got {ratio}")
    key = key if fixed is None else jax.random.key(fixed)
    size, kind = value.shape[axis], as_dtype(dtype).numpy
    count = int(size / ratio)
    if pseudo_random:
        # The ends are whole parts of an arithmetic sequence with a random begin.
        alpha = size / count
        most = int(np.floor(alpha))
        top = min((most + 2) / alpha - 1 if count > 1 else 1.0, size / alpha - (count - 1), 1.0)
        begin = jax.random.uniform(key, (), minval=0.0, maxval=max(top, 0.0))
        ends = jnp.ceil(alpha * (jnp.arange(count) + begin)).astype(kind)
        return jnp.concatenate([ends - ends[0], jnp.full(1, size, kind)])
    small, longer = divmod(size, count)
    steps = jax.random.permutation(key, np.where(np.arange(count) < longer, small + 1, small))
    return jnp.concatenate([jnp.zeros(1, kind), jnp.cumsum(steps).astype(kind)])


def _pooled_along(x: Any, ends: Any, axis: int, reduce: Reduce, overlapping: bool) -> Any:
    size, count = x.shape[axis], ends.shape[0] - 1
    widest = size if count == 1 else min(size, size // count + 2) + int(overlapping)
    places = ends[:-1, None] + np.arange(widest)
    last = jnp.minimum(ends[1:] + int(overlapping), size)
    windows = jnp.take(x, places, axis=axis, mode="clip")
    inside = (places < last[:, None]).reshape((count, widest) + (1,) * (x.ndim - axis - 1))
    return reduce(windows, inside, axis + 1)


def _largest(windows: Any, inside: Any, axis: int) -> Any:
    least = -np.inf if is_floating(windows) else np.iinfo(windows.dtype).min
    best = jnp.argmax(jnp.where(inside, windows, np.asarray(least, windows.dtype)), axis, keepdims=True)
    return jnp.take_along_axis(windows, best, axis).squeeze(axis)  # so that only the first one has a gradient


def _total(windows: Any, inside: Any, axis: int) -> Any:
    return jnp.sum(jnp.where(inside, windows, np.zeros((), windows.dtype)), axis)


def _largest_of(x: Any, rows: Any, columns: Any, overlapping: bool) -> Any:
    return _pooled_along(_pooled_along(x, rows, 1, _largest, overlapping), columns, 2, _largest, overlapping)


def _mean_of(x: Any, rows: Any, columns: Any, overlapping: bool) -> Any:
    def add(some: Any) -> Any:
        return _pooled_along(_pooled_along(some, rows, 1, _total, overlapping), columns, 2, _total, overlapping)

    total, count = add(x), add(jnp.ones((1, *x.shape[1:3], 1), x.dtype))
    return total / count if is_floating(x) else total // count


def _pooling(name: str, type_: str, pool: Callable[..., Any]) -> Callable[..., Any]:
    def compute(value: Any, rows: Any, columns: Any, overlapping: bool = False) -> Any:
        return pool(jnp.asarray(value), rows, columns, overlapping)

    compute.__name__ = name
    compute.__doc__ = f"TensorFlow's {type_} of windows that begin at these places."
    return op("", type=type_, tensors="value rows columns")(compute)


fractional_max_pool = _pooling("fractional_max_pool", "FractionalMaxPool", _largest_of)
fractional_avg_pool = _pooling("fractional_avg_pool", "FractionalAvgPool", _mean_of)


@op(
    v1_names="tf.raw_ops.FractionalMaxPoolGrad", type="FractionalMaxPoolGrad",
    tensors="orig_input orig_output out_backprop row_pooling_sequence col_pooling_sequence",
    alike="orig_input orig_output out_backprop",
)  # fmt: skip
def fractional_max_pool_grad(
    orig_input: Any, orig_output: Any, out_backprop: Any, row_pooling_sequence: Any, col_pooling_sequence: Any,
    overlapping: bool = False,
) -> Any:  # fmt: skip
    """The derivative by what the largest of each window were taken of."""
    del orig_output
    ends = row_pooling_sequence, col_pooling_sequence
    return jax.vjp(lambda x: _largest_of(x, *ends, bool(overlapping)), jnp.asarray(orig_input))[1](out_backprop)[0]


@op(
    v1_names="tf.raw_ops.FractionalAvgPoolGrad", type="FractionalAvgPoolGrad",
    tensors="orig_input_tensor_shape out_backprop row_pooling_sequence col_pooling_sequence",
    shapes="orig_input_tensor_shape",
)  # fmt: skip
def fractional_avg_pool_grad(
    orig_input_tensor_shape: Any, out_backprop: Any, row_pooling_sequence: Any, col_pooling_sequence: Any,
    overlapping: bool = False,
) -> Any:  # fmt: skip
    """The derivative by what the mean of each window was taken of."""
    zeros = jnp.zeros(sizes_of(orig_input_tensor_shape, "the shape of images"), out_backprop.dtype)
    ends = row_pooling_sequence, col_pooling_sequence
    return jax.vjp(lambda x: _mean_of(x, *ends, bool(overlapping)), zeros)[1](out_backprop)[0]
