"""Reductions of rows by segment, and counts of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import is_floating, is_integer, known, limit_of, numpy_or_jax, with_value
from trainband.compat.ops.checks import check, check_range
from trainband.compat.ops.dtypes import as_dtype, int32
from trainband.compat.ops.indexing import gather
from trainband.compat.ops.math import cast, divide, truncatediv
from trainband.compat.ops.table import op

Reduce = Callable[[Any, Any, int], Any]
"""Of rows, the number of each row's segment, and how many segments there are."""


def _sum(data: Any, ids: Any, count: int) -> Any:
    return jnp.zeros((count, *data.shape[1:]), data.dtype).at[ids].add(data, mode="drop")


def _members(data: Any, ids: Any, count: int) -> Any:
    """How many rows each segment has, in a shape that can be multiplied with them."""
    counts = jnp.zeros(count, data.dtype).at[ids].add(1, mode="drop")
    return counts.reshape(-1, *(1,) * (data.ndim - 1))


def _mean(data: Any, ids: Any, count: int) -> Any:
    """The means of segments in order: of whole numbers whole, where those of segments in any order are fractions."""
    quotient = truncatediv if is_integer(data) else divide
    return quotient(_sum(data, ids, count), jnp.maximum(_members(data, ids, count), 1))


def _mean_of_any(data: Any, ids: Any, count: int) -> Any:
    return divide(_sum(data, ids, count), jnp.maximum(_members(data, ids, count), 1))


def _sqrt_n(data: Any, ids: Any, count: int) -> Any:
    return _sum(data, ids, count) / jnp.sqrt(jnp.maximum(_members(data, ids, count), 1))


def _extreme(name: str, first: Callable[[Any, str], Any], empty: Callable[[Any, str], Any]) -> Reduce:
    """The largest or smallest; several that are equal share the gradient.

    Args:
      first: what it begins with, by the dtype.
      empty: what a segment without rows has.
    """

    def compute(data: Any, ids: Any, count: int) -> Any:
        begin = jnp.full((count, *data.shape[1:]), first(data.dtype, name), data.dtype)
        fixed = jax.lax.stop_gradient(data)
        best = getattr(begin.at[ids], name)(fixed, mode="drop")
        result = jnp.where(_members(fixed, ids, count) == 0, empty(data.dtype, name), best)
        if not is_floating(data):
            return result
        chosen = fixed == best.at[ids].get(mode="clip")
        several = _sum(chosen.astype(data.dtype), ids, count).at[ids].get(mode="clip")
        return with_value(_sum(jnp.where(chosen, data, 0) / jnp.maximum(several, 1), ids, count), result)

    return compute


def _zero(dtype: Any, name: str) -> Any:  # noqa: ARG001 - as `_worst`
    return np.zeros((), dtype)


def _bound(dtype: Any, name: str) -> Any:
    """The infinite number that every other one is beyond, or the worst of whole numbers."""
    if not as_dtype(dtype).is_floating:
        return _worst(dtype, name)
    return np.asarray(-np.inf if name == "max" else np.inf, dtype)


def _worst(dtype: Any, name: str) -> Any:
    kind = as_dtype(dtype)
    return np.asarray(kind.min if name == "max" else kind.max, dtype)


@jax.custom_jvp
def _by_product(data: Any, ids: Any, like: Any) -> Any:
    return jnp.ones_like(like).at[ids].mul(data, mode="drop")


@_by_product.defjvp
def _product_derivative(values: Any, tangents: Any) -> tuple[Any, Any]:
    """The product of the others, for one zero in a segment too."""
    data, ids, like = values
    zero = data == 0
    zeros = _sum(zero.astype(data.dtype), ids, like.shape[0]).at[ids].get(mode="clip")
    rest = _by_product(jnp.where(zero, 1, data), ids, like).at[ids].get(mode="clip")
    others = jnp.where(zero, jnp.where(zeros == 1, rest, 0), jnp.where(zeros == 0, rest / jnp.where(zero, 1, data), 0))
    return _by_product(data, ids, like), _sum(tangents[0] * others, ids, like.shape[0])


def _product(data: Any, ids: Any, count: int) -> Any:
    return _by_product(data, ids, jnp.zeros((count, *data.shape[1:]), data.dtype))


def _check_sorted(ids: Any) -> None:
    xp = numpy_or_jax(ids)
    check(lambda: (ids[-1:] >= 0).all(), "segment ids must be >= 0")
    check(lambda: (xp.diff(ids) >= 0).all() & (ids >= 0).all(), "segment ids are not increasing")


def _segmented(name: str, reduce: Reduce, *, is_sorted: bool) -> Callable[..., Any]:
    def of_sorted(data: Any, segment_ids: Any, num_segments: Any = None) -> Any:
        ids = segment_ids
        count = limit_of(known(ids, "segment_ids")) if num_segments is None else num_segments
        if np.shape(ids) != np.shape(data)[:1]:
            raise ValueError(
                f"segment_ids should be the same size as dimension 0 of input: {np.shape(ids)}, {np.shape(data)}"
            )
        _check_sorted(ids)
        return reduce(jnp.asarray(data), ids, int(count))

    def of_any(data: Any, segment_ids: Any, num_segments: Any) -> Any:
        count, rank = int(num_segments), np.ndim(segment_ids)
        check(lambda: (segment_ids < count).all(), f"segment_ids are not all in [0, {count})")
        rows = jnp.asarray(data).reshape(int(np.prod(data.shape[:rank])), *data.shape[rank:])
        ids = jnp.asarray(segment_ids).reshape(-1)
        return reduce(rows, jnp.where(ids < 0, count, ids), count)

    compute = of_sorted if is_sorted else of_any
    compute.__name__ = name
    compute.__doc__ = f"TensorFlow's {name} of the rows of each segment" + "."
    return op(
        f"tf.math.{name}", v1_names=f"tf.{name}", type=name.title().replace("_", ""), tensors="data segment_ids",
        kinds={"segment_ids": "int"}, v1="data segment_ids name" if is_sorted else "",
        limits={"num_segments": "segment_ids"} if is_sorted else None,
    )(compute)  # fmt: skip


for _name, _reduce in (
    ("sum", _sum), ("mean", _mean), ("prod", _product),
    ("max", _extreme("max", _bound, _zero)), ("min", _extreme("min", _bound, _zero)),
):  # fmt: skip
    _segmented(f"segment_{_name}", _reduce, is_sorted=True)
for _name, _reduce in (
    ("sum", _sum), ("mean", _mean_of_any), ("prod", _product), ("sqrt_n", _sqrt_n),
    ("max", _extreme("max", _worst, _worst)), ("min", _extreme("min", _worst, _worst)),
):  # fmt: skip
    _segmented(f"unsorted_segment_{_name}", _reduce, is_sorted=False)


def _sparse(name: str, reduce: Reduce) -> None:
    def compute(data: Any, indices: Any, segment_ids: Any, num_segments: Any = None) -> Any:
        count = int(limit_of(known(segment_ids, "segment_ids")) if num_segments is None else num_segments)
        _check_sorted(segment_ids)
        check_range(segment_ids, count, "segment_ids")
        return reduce(jnp.asarray(gather(data, indices)), segment_ids, count)

    compute.__name__ = name
    compute.__doc__ = f"TensorFlow's {name}: of rows that are looked up."
    op(
        f"tf.sparse.{name.removeprefix('sparse_')}", v1_names=f"tf.{name}", type=name.title().replace("_", ""),
        tensors="data indices segment_ids", v1="data indices segment_ids name num_segments",
        limits={"num_segments": "segment_ids"},
    )(compute)  # fmt: skip


_sparse("sparse_segment_sum", _sum)
_sparse("sparse_segment_mean", _mean)
_sparse("sparse_segment_sqrt_n", _sqrt_n)


@op(
    "tf.math.bincount", v1_names="tf.bincount", type="Bincount", tensors="arr weights", optional="weights",
    v1="arr weights minlength maxlength dtype name", kinds={"arr": "int"}, limits={"count": "arr"},
)  # fmt: skip
def bincount(
    arr: Any, weights: Any = None, minlength: Any = None, maxlength: Any = None, dtype: Any = int32, count: Any = None
) -> Any:
    """How often each whole number below `count` occurs."""
    count = int(limit_of(known(arr, "arr")) if count is None else count)
    count = max(count, int(0 if minlength is None else minlength))
    count = count if maxlength is None else min(count, int(maxlength))
    ones = jnp.ones(arr.shape, as_dtype(dtype).numpy) if weights is None else jnp.asarray(weights)
    return jnp.zeros(count, ones.dtype).at[jnp.ravel(jnp.asarray(arr))].add(jnp.ravel(ones), mode="drop")


def _bins(values: Any, value_range: Any, nbins: Any) -> Any:
    low, high = (jnp.asarray(one, values.dtype) for one in (value_range[0], value_range[1]))
    share = jnp.floor((values - low) / (high - low) * int(nbins))
    return jnp.clip(share, 0, int(nbins) - 1).astype(np.int32)


@op(v1_names="tf.histogram_fixed_width_bins", type="histogram_fixed_width_bins", tensors="values value_range")
def histogram_fixed_width_bins(values: Any, value_range: Any, nbins: Any = 100, dtype: Any = int32) -> Any:
    """The bin of equal width into which each number falls; the outer bins have what lies beyond."""
    return _bins(values, value_range, nbins).astype(as_dtype(dtype).numpy)


@op(v1_names="tf.histogram_fixed_width", type="histogram_fixed_width", tensors="values value_range")
def histogram_fixed_width(values: Any, value_range: Any, nbins: Any = 100, dtype: Any = int32) -> Any:
    """How many numbers fall into each bin of equal width."""
    return jnp.zeros(int(nbins), as_dtype(dtype).numpy).at[jnp.ravel(_bins(values, value_range, nbins))].add(1)


@op(
    "tf.math.confusion_matrix", v1_names="tf.confusion_matrix", type="confusion_matrix",
    tensors="labels predictions weights", optional="weights",
    v1="labels predictions num_classes dtype name weights", limits={"num_classes": "labels predictions"},
)  # fmt: skip
def confusion_matrix(
    labels: Any, predictions: Any, num_classes: Any = None, weights: Any = None, dtype: Any = int32
) -> Any:
    """How often each class, by row, was predicted as each class, by column."""
    kind = as_dtype(dtype).numpy
    arrays = (labels, predictions)
    count = int(limit_of(*(known(one, "a class") for one in arrays)) if num_classes is None else num_classes)
    y, p = (cast(jnp.asarray(one), "int64") for one in (labels, predictions))
    check_range(y, count, "`labels`")
    check_range(p, count, "`predictions`")
    amounts = jnp.ones(y.shape, kind) if weights is None else jnp.asarray(weights).astype(kind)
    return jnp.zeros((count, count), kind).at[y, p].add(jnp.broadcast_to(amounts, y.shape))


@op(
    v1_names="tf.contrib.framework.remove_squeezable_dimensions", type="remove_squeezable_dimensions",
    tensors="labels predictions", outputs=2, folds=True,
)  # fmt: skip
def remove_squeezable_dimensions(labels: Any, predictions: Any, expected_rank_diff: int = 0) -> Any:
    """Remove the last axis, of size 1, of the one that has an axis more than it should."""
    more = np.ndim(predictions) - np.ndim(labels) - expected_rank_diff
    if more == 1 and predictions.shape[-1] == 1:
        return labels, predictions.reshape(predictions.shape[:-1])
    if more == -1 and labels.shape[-1] == 1:
        return labels.reshape(labels.shape[:-1]), predictions
    return labels, predictions
