"""Parts of arrays: slices, rows by their numbers, the largest of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import (
    ArgumentError,
    axes_of,
    axis_of,
    is_computed,
    known,
    limit_of,
    numpy_or_jax,
    sizes_of,
)
from trainband.compat.ops.checks import check, check_range, check_rows
from trainband.compat.ops.dtypes import as_dtype, bool_
from trainband.compat.ops.table import op


@op(
    "tf.gather",
    type="GatherV2",
    tensors="params indices",
    folds=True,
    v1="params indices -validate_indices name axis batch_dims",
    kinds={"indices": "int"},
)
def gather(params: Any, indices: Any, axis: Any = None, batch_dims: Any = 0) -> Any:
    """The rows, or the places along another axis, of these numbers; the first axes may be those of a batch."""
    batch = int(batch_dims)
    where = axis_of(axis, batch) % max(1, np.ndim(params))
    check_range(indices, params.shape[where])
    xp = numpy_or_jax(params, indices)
    if batch == 0:
        return xp.take(params, indices, axis=where, mode="clip")

    def of_one(some: Any, places: Any) -> Any:
        return jnp.take(some, places, axis=where - batch, mode="clip")

    for _ in range(batch):
        of_one = jax.vmap(of_one)
    return of_one(jnp.asarray(params), jnp.asarray(indices))


@op(v1_names="tf.batch_gather", type="BatchGather", tensors="params indices", kinds={"indices": "int"})
def batch_gather(params: Any, indices: Any) -> Any:
    """The places of these numbers along the last axis of the indices, for each of the others."""
    batch = np.ndim(indices) - 1
    return gather(params, indices, batch, batch)


def checked_places(indices: Any, shape: Sequence[int]) -> tuple[Any, ...]:
    """The places in an array that the last axis of indices gives, which must lie in it."""
    sizes = np.array(shape[: indices.shape[-1]], np.int32)
    check(lambda: ((indices >= 0) & (indices < sizes)).all(), f"indices are not all within the shape {tuple(shape)}")
    return tuple(jnp.moveaxis(jnp.asarray(indices), -1, 0))


@op(
    "tf.gather_nd",
    type="GatherNd",
    tensors="params indices",
    v1="params indices name -batch_dims",
    kinds={"indices": "int"},
)
def gather_nd(params: Any, indices: Any) -> Any:
    """The elements or slices at these places."""
    return jnp.asarray(params)[checked_places(indices, params.shape)]


@op(
    "tf.scatter_nd",
    type="ScatterNd",
    tensors="indices updates shape",
    shapes="shape",
    kinds={"indices": "int"},
    ranked_by="shape",
)
def scatter_nd(indices: Any, updates: Any, shape: Any) -> Any:
    """Zeros, with these values added at these places."""
    whole = jnp.zeros(sizes_of(shape, "the shape of scatter_nd"), updates.dtype)
    return whole.at[checked_places(indices, whole.shape)].add(updates)


def _scattering(name: str, method: str) -> None:
    def compute(tensor: Any, indices: Any, updates: Any) -> Any:
        places = jnp.asarray(tensor).at[checked_places(indices, tensor.shape)]
        return places.add(-updates) if method == "subtract" else getattr(places, method)(updates)

    compute.__name__ = f"tensor_scatter_nd_{name}"
    compute.__doc__ = f"TensorFlow's {compute.__name__}: an array with other values at these places."
    op(
        f"tf.{compute.__name__}", v1_names=f"tf.tensor_scatter_{name}", type=f"TensorScatter{name.title()}",
        tensors="tensor indices updates", alike="tensor updates", kinds={"indices": "int"},
    )(compute)  # fmt: skip


for _name, _method in (("update", "set"), ("add", "add"), ("sub", "subtract"), ("min", "min"), ("max", "max")):
    _scattering(_name, _method)


@op("", type="IndexedSlicesToTensor", tensors="values indices")
def dense_from_rows(values: Any, indices: Any, shape: Any) -> Any:
    """Rows by their numbers as a whole; rows of one number add up."""
    sizes = sizes_of(shape, "the shape of the whole")
    check_rows(indices, sizes[0])
    return jnp.zeros(sizes, values.dtype).at[indices].add(values)


def rows_replaced(whole: Any, indices: Any, updates: Any) -> Any:
    """An array with other rows at these numbers."""
    return jnp.asarray(whole).at[indices].set(updates)


def rows_added(whole: Any, indices: Any, updates: Any) -> Any:
    """An array with something added to the rows of these numbers."""
    return jnp.asarray(whole).at[indices].add(updates)


def rows_subtracted(whole: Any, indices: Any, updates: Any) -> Any:
    """An array with something subtracted from the rows of these numbers."""
    return jnp.asarray(whole).at[indices].add(-updates)


def rows_multiplied(whole: Any, indices: Any, updates: Any) -> Any:
    """An array whose rows of these numbers are multiplied."""
    return jnp.asarray(whole).at[indices].multiply(updates)


def rows_divided(whole: Any, indices: Any, updates: Any) -> Any:
    """An array whose rows of these numbers are divided; whole numbers drop the remainder."""
    by = rows_multiplied(jnp.ones_like(whole), indices, updates)
    return jax.lax.div(jnp.asarray(whole), by)


def rows_maximized(whole: Any, indices: Any, updates: Any) -> Any:
    """An array with larger numbers in the rows of these numbers."""
    return jnp.asarray(whole).at[indices].max(updates)


def rows_minimized(whole: Any, indices: Any, updates: Any) -> Any:
    """An array with smaller numbers in the rows of these numbers."""
    return jnp.asarray(whole).at[indices].min(updates)


@op(
    "tf.one_hot",
    type="OneHot",
    tensors="indices on_value off_value",
    optional="on_value off_value",
    like={"on_value": "dtype", "off_value": "dtype on_value"},
    folds=True,
)
def one_hot(
    indices: Any, depth: Any, on_value: Any = None, off_value: Any = None, axis: Any = None, dtype: Any = None
) -> Any:
    """Put `on_value` at the place that each index names, and `off_value` elsewhere; by default 1.0 and 0.0."""
    kind = on_value.dtype if dtype is None and on_value is not None else as_dtype(dtype or "float32").numpy
    on = np.ones((), kind) if on_value is None else on_value.astype(kind)
    off = np.zeros((), kind) if off_value is None else off_value.astype(kind)
    if on.dtype != off.dtype or (dtype is not None and on.dtype != kind):
        raise TypeError(f"dtype {on.dtype} of on_value does not match dtype parameter {kind}")
    xp, where = numpy_or_jax(indices, on, off), axis_of(axis, -1)
    places = xp.expand_dims(indices, where)
    along = [-1 if i == where % places.ndim else 1 for i in range(places.ndim)]
    return xp.where(places == np.arange(int(depth)).reshape(along), on, off)


def _places(condition: Any, x: Any, y: Any) -> list[Any] | None:
    """What is known of the result of `where` without other arguments."""
    if x is not None or y is not None:
        return None
    return [(as_dtype("int64"), (None, None if condition.shape is None else len(condition.shape)))]


@op(
    v1_names="tf.where tf.select",
    type="Select",
    tensors="condition x y",
    optional="x y",
    alike="x y",
    folds=True,
    unsized=_places,
)
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Choose from one array or the other, element by element; a condition with one axis chooses whole rows."""
    if x is None and y is None:
        return np.argwhere(known(condition, "the condition of a tf.where without x and y"))
    if x is None or y is None:
        raise ArgumentError("x and y must both be non-None or both be None.")
    if np.shape(x) != np.shape(y) or (np.ndim(condition) and np.shape(condition) not in (np.shape(x), np.shape(x)[:1])):
        raise ValueError(
            f"Shapes must be equal, but are {np.shape(condition)}, {np.shape(x)} and {np.shape(y)} for 'Select'"
        )
    if np.ndim(condition) == 1 and np.ndim(x) > 1:
        condition = condition.reshape((-1,) + (1,) * (np.ndim(x) - 1))
    return numpy_or_jax(condition, x, y).where(condition, x, y)


@op(
    v1_names="tf.where_v2",
    type="SelectV2",
    tensors="condition x y",
    optional="x y",
    alike="x y",
    folds=True,
    unsized=_places,
)
def where_v2(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Choose from one array or the other, element by element, with broadcasting."""
    return where(condition) if x is None or y is None else numpy_or_jax(condition, x, y).where(condition, x, y)


@op("tf.slice", type="Slice", tensors="input_ begin size", shapes="begin size", folds=True, ranked_by="input_")
def slice_(input_: Any, begin: Any, size: Any) -> Any:
    """Return a part with a given begin and size; -1 means up to the end."""
    lengths = sizes_of(size, "the size of a slice")
    if is_computed(begin):
        whole = [input_.shape[i] if n == -1 else n for i, n in enumerate(lengths)]
        return jax.lax.dynamic_slice(input_, [begin[i] for i in range(len(whole))], whole)
    begins = sizes_of(begin, "the begin of a slice")
    return input_[tuple(slice(b, None if n == -1 else b + n) for b, n in zip(begins, lengths, strict=True))]


@op("tf.strided_slice", type="StridedSlice", tensors="input_", folds=True, title="strided_slice")
def strided_slice(
    input_: Any,
    begin: Any,
    end: Any,
    strides: Any = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Any:
    """Return a part as Python's slices do; the bits of the masks say what the numbers at their places mean."""
    starts, ends = axes_of(begin) or (), axes_of(end) or ()
    steps = axes_of(strides) or (1,) * len(starts)
    key: list[Any] = []
    for i, (first, last, step) in enumerate(zip(starts, ends, steps, strict=True)):
        if ellipsis_mask >> i & 1:
            key.append(Ellipsis)
        elif new_axis_mask >> i & 1:
            key.append(None)
        elif shrink_axis_mask >> i & 1:
            key.append(first)
        else:
            key.append(
                slice(None if begin_mask >> i & 1 else first, None if end_mask >> i & 1 else last, step)
            )  # fmt: skip
    _check_index(key, input_.shape)
    return input_[tuple(key)]


def _check_index(index: Sequence[Any], shape: Sequence[int]) -> None:
    """Demand that each single place of an index exists."""
    taken = sum(part is not None and part is not Ellipsis for part in index)
    if taken > len(shape):
        raise ArgumentError(f"Index out of range: {taken} indices for an array of {len(shape)} axes")
    axis = 0
    for part in index:
        if part is Ellipsis:
            axis += len(shape) - taken
        elif part is not None:
            size, axis = shape[axis], axis + 1
            if not isinstance(part, slice):
                if not is_computed(part) and not -size <= int(part) < size:
                    raise ArgumentError(f"slice index {int(part)} of dimension {axis - 1} out of bounds.")
                check_range(part, size, "slice indices", -size)


@dataclass(frozen=True, slots=True)
class Given:
    """Stands for the value of an array in the key of `slice_item`."""

    number: int


def planned_key(key: Any, is_tensor: Callable[[Any], bool]) -> tuple[tuple[Any, ...], list[Any]]:
    """(the parts of `tensor[key]` with `Given` in place of its tensors, those tensors)."""
    tensors: list[Any] = []

    def plan(part: Any) -> Any:
        if isinstance(part, slice):
            return slice(plan(part.start), plan(part.stop), plan(part.step))
        if is_tensor(part):
            tensors.append(part)
            return Given(len(tensors) - 1)
        return part if part is None or part is Ellipsis else int(part)

    return tuple(plan(part) for part in (key if isinstance(key, tuple) else (key,))), tensors


@op("", type="StridedSlice", tensors="tensor", lists="given", folds=True, title="strided_slice")
def slice_item(tensor: Any, parts: Sequence[Any], *given: Any) -> Any:
    """`tensor[key]`, of a key from `planned_key` and the arrays in it."""

    def end(one: Any) -> Any:
        return sizes_of(given[one.number], "the end of a slice")[0] if isinstance(one, Given) else one

    index: list[Any] = []
    for part in parts:
        if isinstance(part, slice):
            index.append(slice(end(part.start), end(part.stop), end(part.step)))
        else:
            index.append(given[part.number] if isinstance(part, Given) else part)
    _check_index(index, tensor.shape)
    return (jnp.asarray(tensor) if numpy_or_jax(*given) is jnp else tensor)[tuple(index)]


@op(
    "tf.sequence_mask",
    type="SequenceMask",
    tensors="lengths",
    v1="lengths maxlen dtype name",
    limits={"limit": "lengths"},
)
def sequence_mask(lengths: Any, maxlen: Any = None, dtype: Any = bool_, limit: Any = None) -> Any:
    """True for the first `lengths` places of each row, which has as many as there are below `limit`."""
    if maxlen is None:
        limit = limit_of(known(lengths, "the lengths of a sequence_mask")) if limit is None else limit
        maxlen = max(0, int(limit) - 1)
    return (jnp.arange(int(maxlen)) < lengths[..., None]).astype(as_dtype(dtype).numpy)


def true_places(mask: Any) -> Any:
    """The places at which a mask is true."""
    return np.flatnonzero(mask).astype(np.int32)


@op("tf.math.top_k tf.nn.top_k", type="TopKV2", tensors="input", outputs=2, v1="input k -sorted=True name")
def top_k(input: Any, k: Any = 1) -> Any:  # noqa: A002 - TensorFlow's name
    """The k largest of each row, and where they are."""
    count = int(k)
    if count < 0:
        raise ArgumentError(f"Need k >= 0, got {count}")
    if np.ndim(input) < 1:
        raise ArgumentError(f"input must be >= 1-D: Shape must be at least rank 1 but is rank {np.ndim(input)}")
    if input.shape[-1] < count:
        raise ArgumentError(f"input must have last dimension >= k = {count} but is {input.shape[-1]}")
    # XLA sorts -0.0 below 0.0, where TensorFlow takes the first of the two: they are equal.
    _, places = jax.lax.top_k(jnp.where(input == 0, jnp.zeros_like(input), input), count)
    return jnp.take_along_axis(jnp.asarray(input), places, -1), places.astype(np.int32)


@op("", type="GatherNd", tensors="dense indices", kinds={"indices": "int"})
def at_places(dense: Any, indices: Any) -> Any:
    """The elements at some places of an array that is broadcast to as many axes as the places have."""
    sizes = dense.shape
    first = indices.shape[-1] - len(sizes)
    return jnp.asarray(dense)[tuple(jnp.minimum(indices[:, first + i], size - 1) for i, size in enumerate(sizes))]


@op("", type="NthElement", tensors="input n", kinds={"n": "int"}, like={"n": "int32"})
def nth_element(input: Any, n: Any, reverse: bool = False) -> Any:  # noqa: A002
    """Of each row the number that has the place `n` when they are sorted."""
    if np.ndim(input) < 1:
        raise ArgumentError(f"Input must be >= 1-D: Shape must be at least rank 1 but is rank {np.ndim(input)}")
    if np.ndim(n):
        raise ArgumentError(f"Shape must be rank 0 but is rank {np.ndim(n)}")
    if not is_computed(n) and not 0 <= int(n) < input.shape[-1]:
        if int(n) < 0:
            raise ArgumentError(f"n must be non-negative but got {int(n)}")
        raise ArgumentError(f"Input must have last dimension > n = {int(n)} but is {input.shape[-1]}")
    check(lambda: (n >= 0) & (n < input.shape[-1]), f"n must be in [0, {input.shape[-1]})")
    return jnp.take(jnp.sort(input, axis=-1, descending=reverse), n, axis=-1, mode="clip")


@op("tf.math.in_top_k tf.nn.in_top_k", type="InTopK", tensors="predictions targets")
def in_top_k(predictions: Any, targets: Any, k: Any) -> Any:
    """Whether each row's target is among its k largest."""
    inside = (targets >= 0) & (targets < predictions.shape[1])
    own = jnp.take_along_axis(predictions, jnp.where(inside, targets, 0)[:, None].astype("int32"), axis=1)
    finite = jnp.isfinite(predictions).all(1)
    return (jnp.sum(predictions > own, axis=1) < int(k)) & inside & finite
