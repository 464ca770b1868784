"""Sequences of arrays: the elements of a `TensorArray`, and sequences that are read backwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, is_computed, numpy_or_jax, sizes_of
from trainband.compat.ops.dtypes import DType
from trainband.compat.ops.table import op


@op("", type="ReverseSequence", tensors="x lengths")
def reverse_rows(x: Any, lengths: Any, batch_axis: int, time_axis: int) -> Any:
    """The first elements of each sequence, as many as its length, in reverse order; the others stay where they are."""
    rows = jnp.moveaxis(x, (batch_axis, time_axis), (0, 1))
    steps = jnp.arange(rows.shape[1])
    count = jnp.reshape(lengths, (-1, 1))
    places = jnp.where(steps < count, count - 1 - steps, steps)
    turned = jnp.take_along_axis(rows, places.reshape(*places.shape, *(1,) * (rows.ndim - 2)), axis=1)
    return jnp.moveaxis(turned, (0, 1), (batch_axis, time_axis))


# --- the elements of a `TensorArray` are the rows of one array, which has no columns until their shape is known


def is_unshaped(elements: Any) -> bool:
    """Whether the shape of the elements is not known yet."""
    return bool(elements.ndim == 2 and elements.shape[1] == 0)


def elements(size: Any, dtype: DType, shape: Sequence[int] | None = None) -> Any:
    """Elements that are all zero, or have no shape yet."""
    count = sizes_of(size, "the size of a TensorArray")[0]
    return np.zeros((count, *((0,) if shape is None else shape)), dtype.numpy)


def _place(index: Any, count: int) -> Any:
    if not is_computed(index) and not 0 <= int(index) < count:
        raise ArgumentError(f"Tried to access index {int(index)} but array is not resizeable and size is: {count}")
    return index


def _shaped(held: Any, like: tuple[int, ...], count: int) -> Any:
    """The elements, as many as asked for, of a shape."""
    if is_unshaped(held):
        return jnp.zeros((max(count, held.shape[0]), *like), held.dtype)
    if count > held.shape[0]:
        return jnp.concatenate([held, jnp.zeros((count - held.shape[0], *held.shape[1:]), held.dtype)])
    return jnp.asarray(held)


@op("", type="TensorArrayWriteV3", tensors="held index value", alike="held value", like={"index": "int32"})
def written(held: Any, index: Any, value: Any, grows: bool = False) -> Any:
    """The elements, one of which is replaced."""
    count = int(index) + 1 if grows and not is_computed(index) else 0
    held = _shaped(held, value.shape, count)
    if held.shape[1:] != value.shape:
        raise ValueError(f"Incompatible shape for value {value.shape}, expected {held.shape[1:]}")
    return held.at[_place(index, held.shape[0])].set(value)


@op("", type="TensorArrayReadV3", tensors="held index", like={"index": "int32"})
def read(held: Any, index: Any) -> Any:
    """One of the elements."""
    return numpy_or_jax(held, index).asarray(held)[_place(index, held.shape[0])]


@op("", type="TensorArrayGatherV3", tensors="held indices", like={"indices": "int32"})
def gathered(held: Any, indices: Any) -> Any:
    """Some of the elements."""
    return jnp.asarray(held)[indices]


@op("", type="TensorArrayScatterV3", tensors="held indices value", alike="held value", like={"indices": "int32"})
def scattered(held: Any, indices: Any, value: Any, grows: bool = False) -> Any:
    """The elements, some of which are replaced."""
    count = int(np.max(indices, initial=-1)) + 1 if grows and not is_computed(indices) else 0
    return _shaped(held, value.shape[1:], count).at[indices].set(value)


@op("", type="TensorArrayConcatV3", tensors="held")
def joined(held: Any) -> Any:
    """The elements, one after the other."""
    return held.reshape(-1, *held.shape[2:])


@op("", type="TensorArraySplitV3", tensors="value lengths", shapes="lengths")
def parted(value: Any, lengths: Any) -> Any:
    """Parts of equal length."""
    sizes = sizes_of(lengths, "the lengths of a TensorArray's parts")
    if len(set(sizes)) > 1:
        raise ArgumentError(f"A TensorArray's elements must have one shape here, got parts of the lengths {sizes}.")
    return numpy_or_jax(value).reshape(value, (len(sizes), sizes[0] if sizes else 0, *value.shape[1:]))


@op("", type="TensorArraySizeV3", tensors="held", of_shape=True)
def count_of(held: Any) -> Any:
    """The number of elements."""
    return np.asarray(held.shape[0], np.int32)


@op("", type="TensorArrayLength", tensors="length index", like={"index": "int32"}, folds=True)
def length_after(length: Any, index: Any) -> Any:
    """How many elements there are when one, or some, have been written."""
    library = numpy_or_jax(length, index)
    return library.maximum(length, library.max(index) + 1).astype(np.int32)


@op("", type="TensorArrayGatherV3", tensors="held length")
def first_of(held: Any, length: Any) -> Any:
    """The elements that there are; if their number is computed, all that there is room for."""
    return held if is_computed(length) else held[: int(length)]


def with_room(held: Any, count: int) -> Any:
    """The elements, with room for as many as asked for."""
    more = count - held.shape[0]
    return held if more <= 0 else numpy_or_jax(held).concatenate([held, np.zeros((more, *held.shape[1:]), held.dtype)])


def allocated(begin: Sequence[Any], once: Callable[[Sequence[Any]], Sequence[Any]]) -> Sequence[Any]:
    """The values that a loop begins with; elements that have no shape yet get that which the loop's body finds out."""
    for _ in begin:
        if not any(is_unshaped(one) for one in begin):
            break
        found = jax.eval_shape(once, begin)
        if [one.shape for one in found] == [one.shape for one in begin]:
            break
        begin = [
            jnp.zeros(after.shape, one.dtype) if is_unshaped(one) else one
            for one, after in zip(begin, found, strict=True)
        ]
    return begin
