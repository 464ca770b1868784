"""Operations whose results have as many elements as the values of their arguments say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import known, limit_of
from trainband.compat.ops.dtypes import as_dtype, int32
from trainband.compat.ops.table import op


def _some(*parameters: str) -> Callable[..., list[Any]]:
    """What is known of lists of unknown length: each has the dtype of a parameter."""

    def unsized(**arguments: Any) -> list[Any]:
        found = [arguments[one] for one in parameters]
        return [(as_dtype(getattr(one, "dtype", one)), (None,)) for one in found]

    return unsized


def _with_places(*names: str) -> Callable[..., list[Any]]:
    """Like `_some`, and second where each number is, in the shape of the numbers."""

    def unsized(x: Any, out_idx: Any, **_: Any) -> list[Any]:
        first, *rest = _some("x", *names)(x=x, out_idx=out_idx)
        return [first, (as_dtype(out_idx), x.shape), *rest]

    return unsized


@op(
    "", type="DynamicPartition", tensors="partitions", folds=True, title="DynamicPartition",
    outputs=lambda num_partitions, **_: int(num_partitions),
    unsized=lambda num_partitions, **_: [(int32, (None,))] * int(num_partitions),
)  # fmt: skip
def partition_places(partitions: Any, num_partitions: Any) -> Any:
    """Where in a list of numbers each part is."""
    parts = known(partitions, "the partitions of a dynamic_partition").ravel()
    return [np.flatnonzero(parts == i).astype(np.int32) for i in range(int(num_partitions))]


@op(
    "tf.dynamic_stitch",
    v1_names="tf.parallel_dynamic_stitch",
    type="DynamicStitch",
    lists="indices data",
    v1="indices data name",
    limits={"count": "indices"},
)
def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any], count: Any = None) -> Any:
    """Put rows at places; the last of several at one place counts."""
    row = data[0].shape[np.ndim(indices[0]) :]
    if count is None:
        count = limit_of(*(known(one, "dynamic_stitch: indices") for one in indices))
    whole = jnp.zeros((int(count), *row), data[0].dtype)
    for place, values in zip(indices, data, strict=True):
        whole = whole.at[place.ravel()].set(jnp.asarray(values).reshape(-1, *row), mode="drop")
    return whole


def _found(x: Any, out_idx: Any) -> tuple[Any, Any, Any]:
    """The distinct numbers in the order in which they come first, where each is among them, and how many of each."""
    values, first, places, counts = np.unique(
        known(x, "unique: x"), return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    kind = as_dtype(out_idx).numpy
    return values[order], np.argsort(order)[places].astype(kind), counts[order].astype(kind)


@op("tf.unique", type="Unique", tensors="x", outputs=2, folds=True, unsized=_with_places())
def unique(x: Any, out_idx: Any = int32) -> Any:
    """The distinct numbers in the order in which they come first, and where each is among them."""
    return _found(x, out_idx)[:2]


@op(
    "tf.unique_with_counts",
    type="UniqueWithCounts",
    tensors="x",
    outputs=3,
    folds=True,
    unsized=_with_places("out_idx"),
)
def unique_with_counts(x: Any, out_idx: Any = int32) -> Any:
    """Like `unique`, and how many of each there are."""
    return _found(x, out_idx)


@op(
    v1_names="tf.setdiff1d", type="ListDiff", tensors="x y", alike="x y", outputs=2, folds=True,
    v1="x y index_dtype=out_idx name", unsized=_some("x", "out_idx"),
)  # fmt: skip
def setdiff1d(x: Any, y: Any, out_idx: Any = int32) -> Any:
    """The numbers that are not among others, and where they are."""
    numbers = np.ravel(known(x, "setdiff1d: x"))
    places = np.flatnonzero(~np.isin(numbers, known(y, "setdiff1d: y")))
    return numbers[places], places.astype(as_dtype(out_idx).numpy)
