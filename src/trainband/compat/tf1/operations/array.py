"""Constants and placeholders, and array operations that need more than the recorder."""

from __future__ import annotations

from typing import Any

from trainband.compat.ops import array, indexing
from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import constant as recorded_constant
from trainband.compat.tf1.graphs.record import convert, is_tensor, known_value, record, record_tensor
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
    if isinstance(value, int) and is_tensor(axis):
        value, axis = axis, value
    return recorded(array.split)(value, num_or_size_splits, axis, num, name)


def boolean_mask(tensor: Any, mask: Any, name: str = "boolean_mask", axis: int | None = None) -> Tensor:
    """Return the rows for which a mask is true; it must be known while recording.

    Raises:
      ValueError: the mask is computed, so that the size of the result is unknown.
    """
    known = known_value(convert(mask))
    if known is None:
        raise ValueError(
            f"boolean_mask with a computed mask has a size that is unknown before a run is compiled (at {user_line()})."
        )
    if known.ndim > 1:
        return recorded(indexing.boolean_mask)(tensor, known, name, axis or 0)  # type: ignore[no-any-return]
    return recorded(indexing.gather)(tensor, indexing.true_places(known), name=name, axis=axis or 0)  # type: ignore[no-any-return]
