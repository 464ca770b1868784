"""Sums, extremes and the like over some axes, or all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np

from trainband.compat.ops.arrays import axes_of, axis_of, is_floating, numpy_or_jax
from trainband.compat.ops.dtypes import as_dtype, int64
from trainband.compat.ops.table import op


def _reduction(name: str, type_: str, compute: Callable[..., Any], *, folds: bool = True) -> Callable[..., Any]:
    def reduce(input_tensor: Any, axis: Any = None, keepdims: Any = False) -> Any:
        return compute(input_tensor, axis=axes_of(axis), keepdims=bool(keepdims))

    reduce.__name__ = name
    reduce.__doc__ = f"TensorFlow's {type_} over some axes, or all."
    return op(
        f"tf.math.{name} tf.{name}",
        type=type_,
        tensors="input_tensor",
        folds=folds,
        v1="input_tensor axis keepdims name reduction_indices=axis keep_dims=keepdims * dim=axis",
    )(reduce)


def _by_numpy(name: str, *, keeps_dtype: bool = False) -> Callable[..., Any]:
    """A reduction by NumPy's name for it; a sum or product of small whole numbers keeps their dtype."""

    def compute(x: Any, **where: Any) -> Any:
        return getattr(numpy_or_jax(x), name)(x, **where, **({"dtype": x.dtype} if keeps_dtype else {}))

    return compute


def _mean(x: Any, **where: Any) -> Any:
    """The mean; of whole numbers, the quotient without a remainder."""
    if is_floating(x):
        return jnp.mean(x, **where)
    total = jnp.sum(x, **where)
    return total // (np.size(x) // max(1, np.size(total)))


reduce_sum = _reduction("reduce_sum", "Sum", _by_numpy("sum", keeps_dtype=True))
reduce_prod = _reduction("reduce_prod", "Prod", _by_numpy("prod", keeps_dtype=True))
reduce_mean = _reduction("reduce_mean", "Mean", _mean, folds=False)
reduce_max = _reduction("reduce_max", "Max", _by_numpy("max"))
reduce_min = _reduction("reduce_min", "Min", _by_numpy("min"))
reduce_all = _reduction("reduce_all", "All", _by_numpy("all"))
reduce_any = _reduction("reduce_any", "Any", _by_numpy("any"))
reduce_logsumexp = _reduction("reduce_logsumexp", "LogSumExp", special.logsumexp, folds=False)

_PLACE = "input axis name dimension=axis output_type"


@op("tf.math.argmax tf.argmax", v1_names="tf.arg_max", type="ArgMax", tensors="input", v1=_PLACE)
def argmax(input: Any, axis: Any = None, output_type: Any = int64) -> Any:  # noqa: A002 - TensorFlow's name
    """Where along an axis, the first by default, the largest is; the first of several."""
    return jnp.argmax(input, axis=axis_of(axis)).astype(as_dtype(output_type).numpy)


@op("tf.math.argmin tf.argmin", v1_names="tf.arg_min", type="ArgMin", tensors="input", v1=_PLACE)
def argmin(input: Any, axis: Any = None, output_type: Any = int64) -> Any:  # noqa: A002
    """Where along an axis, the first by default, the smallest is; the first of several."""
    return jnp.argmin(input, axis=axis_of(axis)).astype(as_dtype(output_type).numpy)


@op("tf.math.cumsum tf.cumsum", type="Cumsum", tensors="x")
def cumsum(x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False) -> Any:
    """The sums of all elements up to each place along an axis."""
    where = axis_of(axis)
    x = jnp.flip(x, where) if reverse else x
    total = jnp.cumsum(x, axis=where, dtype=x.dtype)
    total = total - x if exclusive else total
    return jnp.flip(total, where) if reverse else total


@op("tf.linalg.norm tf.norm", type="norm", tensors="tensor")
def norm(tensor: Any, ord: Any = "euclidean", axis: Any = None, keepdims: Any = None) -> Any:  # noqa: A002
    """The Euclidean norm of the elements, or that of the order 1 or infinity."""
    where: dict[str, Any] = {"axis": axes_of(axis), "keepdims": bool(keepdims)}
    if ord == 1:
        return jnp.sum(jnp.abs(tensor), **where)
    if ord == np.inf:
        return jnp.max(jnp.abs(tensor), **where)
    return jnp.sqrt(jnp.sum(tensor * tensor, **where))


@op("tf.nn.zero_fraction", type="zero_fraction", tensors="value")
def zero_fraction(value: Any) -> Any:
    """The share of elements that are zero, as float32."""
    return jnp.mean((value == 0).astype(np.float32))


@op("tf.nn.l2_loss", type="L2Loss", tensors="t")
def l2_loss(t: Any) -> Any:
    """Half the sum of squares."""
    return jnp.sum(t * t) / 2
