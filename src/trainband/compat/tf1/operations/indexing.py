"""Taking parts of tensors: slices, rows by their numbers, the largest of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.tf1.graphs.dtypes import as_dtype, bool_, float32, int32
from trainband.compat.tf1.graphs.graph import Tensor, user_line
from trainband.compat.tf1.graphs.record import convert, convert_pair, known_value, numpy_or_jax, record, record_tensor
from trainband.compat.tf1.operations.arithmetic import axes_of
from trainband.compat.tf1.operations.arithmetic import cast as cast
from trainband.compat.tf1.operations.array import is_tensor, sizes_of


def gather(params: Any, indices: Any, validate_indices: Any = None, name: str | None = None, axis: int = 0) -> Tensor:  # noqa: ARG001
    """The rows, or places along another axis, of these numbers."""
    return record_tensor(
        "GatherV2",
        lambda x, i: numpy_or_jax(x, i).take(x, i, axis=axis, **({} if numpy_or_jax(x, i) is np else {"mode": "clip"})),
        [convert(params), convert(indices)],
        name=name or "GatherV2",
        folds=True,
        attributes={"axis": axis},
    )


def gather_nd(params: Any, indices: Any, name: str | None = None) -> Tensor:
    """The elements or slices at these places."""

    def compute(x: Any, i: Any) -> Any:
        return jnp.asarray(x)[tuple(jnp.moveaxis(jnp.asarray(i), -1, 0))]

    return record_tensor("GatherNd", compute, [convert(params), convert(indices)], name=name)


def scatter_nd(indices: Any, updates: Any, shape: Any, name: str | None = None) -> Tensor:
    """Zeros with these values added at these places."""

    def compute(i: Any, new: Any, sizes: Any) -> Any:
        whole = jnp.zeros(sizes_of(sizes, "the shape of scatter_nd"), new.dtype)
        return whole.at[tuple(jnp.moveaxis(jnp.asarray(i), -1, 0))].add(new)

    return record_tensor("ScatterNd", compute, [convert(indices), convert(updates), convert(shape)], name=name)


def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = None,
    off_value: Any = None,
    axis: int | None = None,
    dtype: Any = None,
    name: str | None = None,
) -> Tensor:
    """One at the place that each number says, zero elsewhere."""
    kind = as_dtype(dtype) if dtype is not None else float32
    if dtype is None and on_value is not None:
        kind = convert(on_value).dtype
    on, off = (1 if on_value is None else on_value), (0 if off_value is None else off_value)
    count = known_value(convert(depth))
    if count is None:
        raise ValueError(f"the depth of one_hot must be known while recording (at {user_line()}).")

    def compute(i: Any, one: Any, zero: Any) -> Any:
        hot = jax.nn.one_hot(i, int(count), axis=-1 if axis is None else axis, dtype=np.bool_)
        return jnp.where(hot, one, zero)

    return record_tensor("OneHot", compute, [convert(indices), convert(on, kind), convert(off, kind)], name=name)


def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """From one tensor or the other, place by place.

    Raises:
      ValueError: only a condition is given, so that nobody knows the result's size.
    """
    if x is None or y is None:
        raise ValueError(
            f"tf.where without x and y gives as many rows as there are true elements, which must be known before a run "
            f"is compiled; use tf.boolean_mask's alternatives, such as a product with the mask (at {user_line()})."
        )
    first, second = convert_pair(x, y, "Select")

    def compute(mask: Any, a: Any, b: Any) -> Any:
        if np.ndim(mask) == 1 and np.ndim(a) > 1:  # TensorFlow 1's: a mask of rows
            mask = mask.reshape((-1,) + (1,) * (np.ndim(a) - 1))
        return numpy_or_jax(mask, a, b).where(mask, a, b)

    return record_tensor("Select", compute, [convert(condition, bool_), first, second], name=name, folds=True)


def slice_(input_: Any, begin: Any, size: Any, name: str | None = None) -> Tensor:
    """A part that begins somewhere and has a size; -1 means up to the end."""

    def compute(x: Any, start: Any, sizes: Any) -> Any:
        lengths = sizes_of(sizes, "the size of a slice")
        if isinstance(start, jax.core.Tracer | jax.Array):
            whole = [x.shape[i] if n == -1 else n for i, n in enumerate(lengths)]
            return jax.lax.dynamic_slice(x, [start[i] for i in range(len(whole))], whole)
        begins = sizes_of(start, "the begin of a slice")
        return x[tuple(slice(b, None if n == -1 else b + n) for b, n in zip(begins, lengths, strict=True))]

    return record_tensor("Slice", compute, [convert(input_), convert(begin), convert(size)], name=name, folds=True)


def strided_slice(
    input_: Any, begin: Any, end: Any, strides: Any = None, name: str | None = None, **masks: int
) -> Tensor:
    """A part as Python's slices name it.

    Raises:
      ValueError: a mask other than those of begin, end and shrinking is given.
    """
    starts, ends = axes_of(begin) or (), axes_of(end) or ()
    steps = axes_of(strides) or (1,) * len(starts)
    if set(masks) - {"begin_mask", "end_mask", "shrink_axis_mask"}:
        raise ValueError(f"strided_slice: {', '.join(masks)} is not there; use Python's slices.")
    key: list[Any] = []
    for i, (a, b, step) in enumerate(zip(starts, ends, steps, strict=True)):
        if masks.get("shrink_axis_mask", 0) >> i & 1:
            key.append(a)
            continue
        open_a, open_b = masks.get("begin_mask", 0) >> i & 1, masks.get("end_mask", 0) >> i & 1
        key.append(slice(None if open_a else a, None if open_b else b, step))
    return slice_item(convert(input_), tuple(key), name=name)


def slice_item(tensor: Any, key: Any, name: str | None = None) -> Tensor:
    """What `tensor[key]` is: numbers, slices, `...`, `None`, and tensors of one number."""
    inputs: list[Tensor] = [convert(tensor)]

    def plan(part: Any) -> Any:
        """A part of the key with `_Given` in place of its tensors, which become inputs."""
        if isinstance(part, slice):
            return slice(plan(part.start), plan(part.stop), plan(part.step))
        if is_tensor(part):
            inputs.append(convert(part))
            return _Given(len(inputs) - 2)
        return part if part is None or part is Ellipsis else int(part)

    parts = [plan(part) for part in (key if isinstance(key, tuple) else (key,))]

    def compute(x: Any, *given: Any) -> Any:
        def end(one: Any) -> Any:
            return sizes_of(given[one.number], "the end of a slice")[0] if isinstance(one, _Given) else one

        index = [
            slice(end(part.start), end(part.stop), end(part.step))
            if isinstance(part, slice)
            else given[part.number]
            if isinstance(part, _Given)
            else part
            for part in parts
        ]
        return (jnp.asarray(x) if numpy_or_jax(*given) is jnp else x)[tuple(index)]

    return record_tensor("StridedSlice", compute, inputs, name=name or "strided_slice", folds=True)


@dataclass(frozen=True, slots=True)
class _Given:
    """Stands for the value of a tensor in a key."""

    number: int


Tensor.overloads["slice_item"] = slice_item


def sequence_mask(lengths: Any, maxlen: Any = None, dtype: Any = bool_, name: str | None = None) -> Tensor:
    """True for the first so many places of each row."""
    tensor = convert(lengths)
    longest = known_value(convert(maxlen)) if maxlen is not None else None
    if longest is None:
        raise ValueError(f"sequence_mask: maxlen must be a number that is known while recording (at {user_line()}).")
    kind = as_dtype(dtype).numpy
    return record_tensor(
        "SequenceMask", lambda n: (jnp.arange(int(longest)) < n[..., None]).astype(kind), [tensor], name=name
    )


def boolean_mask(tensor: Any, mask: Any, name: str = "boolean_mask", axis: int | None = None) -> Tensor:
    """The rows where a mask, known while recording, is true.

    Raises:
      ValueError: the mask is computed, so that nobody knows the result's size.
    """
    known = known_value(convert(mask))
    if known is None:
        raise ValueError(
            "boolean_mask by a computed mask gives a size that nobody knows before a run is compiled "
            f"(at {user_line()})."
        )
    return gather(tensor, np.flatnonzero(known).astype(np.int32), name=name, axis=axis or 0)


def segment_sum(data: Any, segment_ids: Any, num_segments: Any = None, name: str | None = None) -> Tensor:
    """Sums of the rows with one number; how many numbers there are must be known."""
    count = known_value(convert(num_segments)) if num_segments is not None else None
    known = known_value(convert(segment_ids))
    if count is None and known is not None:
        count = np.asarray(known.max() + 1)
    if count is None:
        raise ValueError(f"segment_sum: the number of segments must be known while recording (at {user_line()}).")
    return record_tensor(
        "SegmentSum",
        lambda x, i: jax.ops.segment_sum(x, i, int(count)),
        [convert(data), convert(segment_ids)],
        name=name,
    )


def top_k(input: Any, k: int = 1, sorted: bool = True, name: str | None = None) -> tuple[Tensor, Tensor]:  # noqa: A002, ARG001
    """The k largest of each row, and where they are."""
    values, places = record("TopKV2", lambda x: jax.lax.top_k(x, int(k)), [convert(input)], name=name, count=2).outputs
    return values, cast(places, int32)


def in_top_k(predictions: Any, targets: Any, k: int, name: str | None = None) -> Tensor:
    """Whether each row's target is among its k largest."""

    def compute(x: Any, t: Any) -> Any:
        own = jnp.take_along_axis(x, t[:, None].astype("int32"), axis=1)
        return jnp.sum(x > own, axis=1) < int(k)

    return record_tensor("InTopK", compute, [convert(predictions), convert(targets)], name=name)
