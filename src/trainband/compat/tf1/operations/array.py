"""Constants and placeholders, and array operations that need more than the recorder."""

from __future__ import annotations

from typing import Any

from trainband.compat.ops import array, choosing, indexing, math, reductions
from trainband.compat.ops.dtypes import as_dtype, bool_, int32
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import constant as recorded_constant
from trainband.compat.tf1.graphs.record import convert, is_tensor, known_value, name_scope, record, record_tensor
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.recorder import recorded


def constant(
    value: Any, dtype: Any = None, shape: Any = None, name: str = "Const", verify_shape: bool = False
) -> Tensor:
    """Record a constant; a single number fills a shape.

    Raises:
      TypeError, ValueError: the value is not of the dtype or shape.
    """
    return recorded_constant(array.constant(value, dtype, shape, verify_shape), name)


def convert_to_tensor(
    value: Any,
    dtype: Any = None,
    name: str | None = None,
    preferred_dtype: Any = None,  # noqa: ARG001
    dtype_hint: Any = None,  # noqa: ARG001
) -> Tensor:
    """Convert a value to a tensor."""
    return convert(value, None if dtype is None else as_dtype(dtype), name)


_OLD_NAMES = {"float32": "float", "float64": "double", "float16": "half"}
"""What TensorFlow calls dtypes in this message."""


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Tensor:
    """Record a tensor that every run must feed."""

    def compute(frame: Any) -> Any:  # noqa: ARG001 - it has a value only where it is fed
        sizes = tensor.shape.sizes
        shown = "" if sizes is None else f" and shape [{','.join('?' if one is None else str(one) for one in sizes)}]"
        raise InvalidArgumentError(
            None,
            tensor.op,
            f"You must feed a value for placeholder tensor '{tensor.op.name}' with dtype "
            f"{_OLD_NAMES.get(kind.name, kind.name)}{shown}",
        )

    kind = as_dtype(dtype)
    if any(size is not None and size < 0 for size in TensorShape(shape).sizes or ()):
        raise ValueError(f"Dimensions must be >= 0, got {shape} (at {user_line()})")
    op = record(
        "Placeholder", compute, name=name or "Placeholder", dtypes=[kind], shapes=[TensorShape(shape)], stateful=True
    )
    tensor: Tensor = op.outputs[0]
    return tensor


def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Tensor:  # noqa: A002 - TensorFlow's
    """Record a tensor that a run may feed."""
    tensor = convert(input)
    return record_tensor(
        "PlaceholderWithDefault", lambda x: x, [tensor], name=name, dtypes=[tensor.dtype], shapes=[TensorShape(shape)]
    )


def reshape(tensor: Any, shape: Any, name: str | None = None) -> Tensor:
    """The same elements in another shape; one size may be -1."""
    result: Tensor = recorded(array.reshape)(tensor, shape, name=name)
    known = known_value(result.op.inputs[1])
    if result.shape.sizes is None and known is not None:
        result.set_shape(TensorShape([None if one == -1 else int(one) for one in known]))
    elif result.shape.sizes is None and result.op.inputs[1].shape.is_fully_defined():
        result.set_shape(TensorShape([None] * int(result.op.inputs[1].shape[0])))
    return result


def concat(values: Any = None, axis: Any = None, name: str = "concat", *, concat_dim: Any = None) -> Tensor:
    """Join arrays along an axis; TensorFlow 0.x's `concat(concat_dim, values)` is understood, too."""
    if axis is None:
        axis = concat_dim
    if isinstance(values, int) and not isinstance(axis, int):
        values, axis = axis, values
    return recorded(array.concat)(values, axis, name=name)  # type: ignore[no-any-return]


def split(
    value: Any = None,
    num_or_size_splits: Any = None,
    axis: Any = 0,
    num: int | None = None,
    name: str = "split",
    *,
    split_dim: Any = None,
    num_split: Any = None,
) -> Any:
    """Split along an axis, into a number of equal parts or into parts of given sizes.

    TensorFlow 0.x's `split(split_dim, num_split, value)` is understood, too.
    """
    if split_dim is not None:
        axis = split_dim
    if num_split is not None:
        num_or_size_splits = num_split
    if isinstance(num_or_size_splits, list | tuple) and any(map(is_tensor, num_or_size_splits)):
        num_or_size_splits = convert(num_or_size_splits)
    if isinstance(value, int) and is_tensor(axis):
        value, axis = axis, value
    return recorded(array.split)(value, num_or_size_splits, axis, num, name)


def boolean_mask(tensor: Any, mask: Any, name: str = "boolean_mask", axis: int | None = None) -> Tensor:
    """Return the rows for which a mask is true.

    Raises:
      ValueError: the number of the mask's axes is unknown or 0, or its shape is not that of the tensor's axes.
    """
    whole, chosen = convert(tensor), convert(mask, bool_)
    first, axes = axis or 0, chosen.shape.ndims
    if axes is None or axes == 0:
        raise ValueError(
            "Number of mask dimensions must be specified, even if some dimensions are None, and more than 0 (mask "
            f"cannot be scalar), but is {axes} (at {user_line()})."
        )
    if whole.shape.sizes is not None:
        TensorShape(whole.shape.sizes[first : first + axes]).assert_is_compatible_with(chosen.shape)
    with name_scope(name):
        known = known_value(chosen)
        places = (
            recorded_constant(indexing.true_places(known))
            if known is not None
            else squeeze(recorded(indexing.where)(reshape(chosen, [-1])), axis=[1])
        )
        if axes > 1:
            sizes = recorded(array.shape)(whole)
            whole = reshape(whole, concat([sizes[:first], [-1], sizes[first + axes :]], 0))
        return recorded(indexing.gather)(whole, places, axis=first)  # type: ignore[no-any-return]


squeeze = recorded(array.squeeze)


def dynamic_partition(data: Any, partitions: Any, num_partitions: Any, name: str | None = None) -> list[Tensor]:
    """Return the rows of each part; `partitions` says to which part each row belongs.

    Raises:
      ValueError: the shape of `partitions` is not that of the first axes.
    """
    whole, parts = convert(data), convert(partitions, None if is_tensor(partitions) else int32)
    known = known_value(convert(num_partitions))
    if known is None:
        raise ValueError(f"num_partitions must be known while recording, got {num_partitions} (at {user_line()})")
    count = int(known)
    if whole.shape.sizes is not None and parts.shape.ndims is not None:
        TensorShape(whole.shape.sizes[: parts.shape.ndims]).assert_is_compatible_with(parts.shape)
    with name_scope(name, "DynamicPartition"):
        places = recorded(choosing.partition_places)(parts, count)
        if parts.shape.ndims != 1:
            sizes = recorded(array.shape)(whole)
            whole = reshape(whole, concat([[-1], sizes[recorded(array.rank)(parts) :]], 0))
        return [recorded(indexing.gather)(whole, one) for one in places]


def shape(input: Any, name: str | None = None, out_type: Any = int32) -> Tensor:  # noqa: A002 - TensorFlow's name
    """The sizes of an array; it may be sparse."""
    if isinstance(input, SparseTensor):
        return recorded(math.cast)(input.dense_shape, out_type, name=name)  # type: ignore[no-any-return]
    return recorded(array.shape)(input, name, out_type)  # type: ignore[no-any-return]


def size(input: Any, name: str | None = None, out_type: Any = int32) -> Tensor:  # noqa: A002
    """How many elements an array has; it may be sparse."""
    if isinstance(input, SparseTensor):
        return recorded(reductions.reduce_prod)(shape(input, None, out_type), name=name)  # type: ignore[no-any-return]
    return recorded(array.size)(input, name, out_type)  # type: ignore[no-any-return]


def rank(input: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """How many axes an array has; it may be sparse."""
    if isinstance(input, SparseTensor):
        return recorded(array.size)(input.dense_shape, name)  # type: ignore[no-any-return]
    return recorded(array.rank)(input, name)  # type: ignore[no-any-return]
