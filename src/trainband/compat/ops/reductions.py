"""Sums, extremes and the like over some axes, or all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, axes_of, axis_of, is_floating, numpy_or_jax
from trainband.compat.ops.checks import refuse
from trainband.compat.ops.dtypes import as_dtype, int64
from trainband.compat.ops.math import abs_, cast, square_root, truncatediv
from trainband.compat.ops.table import op


def _reduction(
    name: str, type_: str, compute: Callable[..., Any], *, folds: bool = True, names: str = "", kinds: str = ""
) -> Callable[..., Any]:
    def reduce(input_tensor: Any, axis: Any = None, keepdims: Any = False) -> Any:
        return compute(input_tensor, axis=axes_of(axis), keepdims=bool(keepdims))

    reduce.__name__ = name
    reduce.__doc__ = f"TensorFlow's {type_} over some axes, or all."
    return op(
        names or f"tf.math.{name} tf.{name}",
        type=type_,
        tensors="input_tensor",
        folds=folds,
        kinds={"input_tensor": kinds or "float int complex bool"},
        v1="input_tensor axis keepdims name reduction_indices=axis keep_dims=keepdims * dim=axis",
    )(reduce)


def _by_numpy(name: str, *, keeps_dtype: bool = False) -> Callable[..., Any]:
    """A reduction by NumPy's name for it; a sum or product of small whole numbers keeps their dtype."""

    def compute(x: Any, **where: Any) -> Any:
        return getattr(numpy_or_jax(x), name)(x, **where, **({"dtype": x.dtype} if keeps_dtype else {}))

    return compute


def _mean(x: Any, **where: Any) -> Any:
    """The mean; of whole numbers, the quotient of their sum in 64 bits, without a remainder."""
    if is_floating(x) or jnp.iscomplexobj(x):
        return jnp.mean(x, **where)
    total = jnp.sum(x, dtype=np.uint64 if x.dtype.kind == "u" else np.int64, **where)
    count = max(1, np.size(x) // max(1, np.size(total)))
    return truncatediv(total, np.asarray(count, total.dtype)).astype(x.dtype)


def _extreme(name: str) -> Callable[..., Any]:
    """The largest or smallest; of no numbers, the dtype's extreme."""

    def compute(x: Any, **where: Any) -> Any:
        if np.size(x):
            return getattr(numpy_or_jax(x), name)(x, **where)
        sign = -1 if name == "max" else 1
        limits = np.iinfo(x.dtype) if not is_floating(x) else None
        first = sign * np.inf if limits is None else limits.min if name == "max" else limits.max
        return getattr(jnp, name)(x, initial=np.asarray(first, x.dtype), **where)

    return compute


def _variance(x: Any, **where: Any) -> Any:
    return jnp.var(x, **where)


def _deviation(x: Any, **where: Any) -> Any:
    return square_root(jnp.var(x, **where))


def _euclidean(x: Any, **where: Any) -> Any:
    return cast(jnp.sqrt(jnp.sum(x * x, dtype=x.dtype, **where)), x.dtype)


reduce_sum = _reduction("reduce_sum", "Sum", _by_numpy("sum", keeps_dtype=True))
reduce_prod = _reduction("reduce_prod", "Prod", _by_numpy("prod", keeps_dtype=True))
reduce_mean = _reduction("reduce_mean", "Mean", _mean, folds=False)
reduce_max = _reduction("reduce_max", "Max", _extreme("max"))
reduce_min = _reduction("reduce_min", "Min", _extreme("min"))
reduce_all = _reduction("reduce_all", "All", _by_numpy("all"), kinds="bool")
reduce_any = _reduction("reduce_any", "Any", _by_numpy("any"), kinds="bool")
reduce_logsumexp = _reduction("reduce_logsumexp", "LogSumExp", special.logsumexp, folds=False, kinds="float complex")
reduce_variance = _reduction(
    "reduce_variance", "Variance", _variance, folds=False, names="tf.math.reduce_variance", kinds="float complex"
)
reduce_std = _reduction("reduce_std", "Std", _deviation, folds=False, names="tf.math.reduce_std", kinds="float complex")
reduce_euclidean_norm = _reduction(
    "reduce_euclidean_norm", "EuclideanNorm", _euclidean, folds=False, names="tf.math.reduce_euclidean_norm"
)


@op(
    "tf.math.count_nonzero",
    v1_names="tf.count_nonzero",
    type="count_nonzero",
    tensors="input",
    v1="input_tensor=input axis keepdims dtype name reduction_indices=axis keep_dims=keepdims input",
)
def count_nonzero(input: Any, axis: Any = None, keepdims: Any = False, dtype: Any = int64) -> Any:  # noqa: A002
    """How many elements are not zero."""
    return jnp.sum(input != 0, axis=axes_of(axis), keepdims=bool(keepdims)).astype(as_dtype(dtype).numpy)


def _without_nan(x: Any, instead: float) -> Any:
    return jnp.where(x != x, instead, x) if is_floating(x) else x


_PLACE = "input axis name dimension=axis output_type"


def _empty_place(value: Any, axis: int, dtype: Any) -> Any:
    """What stands for places along an axis without elements, in a run that fails; `None` if it has some."""
    if value.shape[axis]:
        return None
    refuse(f"Reduction axis {axis} is empty in shape {list(value.shape)}")
    return jnp.zeros(np.delete(value.shape, axis), as_dtype(dtype).numpy)


@op("tf.math.argmax tf.argmax", v1_names="tf.arg_max", type="ArgMax", tensors="input", v1=_PLACE)
def argmax(input: Any, axis: Any = None, output_type: Any = int64) -> Any:  # noqa: A002 - TensorFlow's name
    """Where along an axis, the first by default, the largest is; the first of several."""
    if (empty := _empty_place(input, axis_of(axis), output_type)) is not None:
        return empty
    return jnp.argmax(_without_nan(input, -np.inf), axis=axis_of(axis)).astype(as_dtype(output_type).numpy)


@op("tf.math.argmin tf.argmin", v1_names="tf.arg_min", type="ArgMin", tensors="input", v1=_PLACE)
def argmin(input: Any, axis: Any = None, output_type: Any = int64) -> Any:  # noqa: A002
    """Where along an axis, the first by default, the smallest is; the first of several."""
    if (empty := _empty_place(input, axis_of(axis), output_type)) is not None:
        return empty
    return jnp.argmin(_without_nan(input, np.inf), axis=axis_of(axis)).astype(as_dtype(output_type).numpy)


def _cumulative(
    name: str, type_: str, names: str, compute: Callable[..., Any], neutral: float, kinds: str = "float int complex"
) -> Callable[..., Any]:
    def cumulate(x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False) -> Any:
        where = axis_of(axis)
        if not -x.ndim <= where < x.ndim:
            raise ArgumentError(f"axis must be in [{-x.ndim}, {x.ndim}), got {where}")
        x = jnp.flip(x, where) if reverse else jnp.asarray(x)
        if exclusive:
            first = jnp.full_like(jax.lax.slice_in_dim(x, 0, 1, axis=where), neutral)
            x = jnp.concatenate([first, jax.lax.slice_in_dim(x, 0, x.shape[where] - 1, axis=where)], where)
        total = compute(x, axis=where)
        return jnp.flip(total, where) if reverse else total

    cumulate.__name__ = name
    cumulate.__doc__ = f"TensorFlow's {type_} of all elements up to each place along an axis."
    return op(names, type=type_, tensors="x", kinds={"x": kinds})(cumulate)


def _sums(x: Any, axis: int) -> Any:
    return jnp.cumsum(x, axis=axis, dtype=x.dtype)


def _products(x: Any, axis: int) -> Any:
    return jnp.cumprod(x, axis=axis, dtype=x.dtype)


def _log_sums(x: Any, axis: int) -> Any:
    return jax.lax.cumlogsumexp(x, axis=axis % x.ndim)


cumsum = _cumulative("cumsum", "Cumsum", "tf.math.cumsum tf.cumsum", _sums, 0)
cumprod = _cumulative("cumprod", "Cumprod", "tf.math.cumprod tf.cumprod", _products, 1)
cumulative_logsumexp = _cumulative(
    "cumulative_logsumexp", "CumulativeLogsumexp", "tf.math.cumulative_logsumexp", _log_sums, -np.inf, "float"
)


@op("tf.linalg.norm tf.norm", type="norm", tensors="tensor", v1="tensor ord axis keepdims name keep_dims=keepdims")
def norm(tensor: Any, ord: Any = "euclidean", axis: Any = None, keepdims: Any = None) -> Any:  # noqa: A002
    """The Euclidean norm of the elements, or that of another order, also of matrices for the orders 1 and infinity."""
    where: dict[str, Any] = {"axis": axes_of(axis), "keepdims": bool(keepdims)}
    if ord in ("euclidean", "fro", 2) and (ord != 2 or axis is None or len(where["axis"]) == 1):
        return square_root(jnp.sum(abs_(tensor) ** 2 if jnp.iscomplexobj(tensor) else tensor * tensor, **where))
    if where["axis"] is not None and len(where["axis"]) == 2:
        return jnp.linalg.norm(tensor, ord, **where)
    if ord == 1:
        return jnp.sum(abs_(tensor), **where)
    if ord == np.inf:
        return jnp.max(abs_(tensor), **where)
    return jnp.sum(abs_(tensor) ** ord, **where) ** (1 / ord)


@op("tf.math.zero_fraction tf.nn.zero_fraction", type="zero_fraction", tensors="value")
def zero_fraction(value: Any) -> Any:
    """The share of elements that are zero, as float32."""
    return jnp.mean((value == 0).astype(np.float32))


@op("tf.nn.l2_loss", type="L2Loss", tensors="t")
def l2_loss(t: Any) -> Any:
    """Half the sum of squares."""
    return jnp.sum(t * t) / 2
