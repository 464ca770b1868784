"""The values of constants, and `TensorProto`s."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import array_of, as_dtype
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.record import known_value
from trainband.compat.tf1.protos.tensor import TensorProto as TensorProto
from trainband.compat.tf1.protos.tensor import TensorShapeProto as TensorShapeProto
from trainband.compat.tf1.protos.tensor import array_of_proto, tensor_proto


def constant_value(tensor: Any, partial: bool = False) -> Any:
    """The value of a tensor that follows from constants, as an array; `None` if it does not."""
    del partial
    return known_value(tensor)


def make_tensor_proto(
    values: Any, dtype: Any = None, shape: Any = None, verify_shape: bool = False, allow_broadcast: bool = False
) -> Any:
    """An array as a `TensorProto`.

    Raises:
      TypeError: the values are not of the dtype, or with `verify_shape` of the shape.
      ValueError: there are more of them than the shape has room for.
    """
    del allow_broadcast
    array = array_of(values, None if dtype is None else as_dtype(dtype))
    if shape is None:
        return tensor_proto(array)
    sizes = [int(one) for one in shape]
    if verify_shape and list(array.shape) != sizes:
        raise TypeError(f"Expected Tensor's shape: {tuple(sizes)}, got {array.shape}.")
    if array.size > math.prod(sizes):
        raise ValueError(f"Too many elements provided. Needed at most {math.prod(sizes)}, but received {array.size}")
    return tensor_proto(array, sizes)


def constant_value_as_shape(tensor: Any) -> TensorShape:
    """The shape that a vector of sizes says, as far as it is known.

    Raises:
      ValueError: a single number is not -1.
    """
    known = known_value(tensor)
    if tensor.shape.ndims == 0:
        if known is not None and int(known) == -1:
            return TensorShape(None)
        raise ValueError(f"The shape is the number {known}: only -1, for an unknown rank, may be a single number.")
    if known is not None:
        return TensorShape([None if int(one) == -1 else int(one) for one in known])
    if tensor.probes is None or tensor.probes[0].value is None or tensor.probes[1].value is None:
        return TensorShape(None if tensor.shape.num_elements() is None else [None] * tensor.shape.num_elements())
    first, second = (np.ravel(probe.value) for probe in tensor.probes)
    if len(first) != len(second):
        return TensorShape(None)
    return TensorShape([int(a) if a == b and a != -1 else None for a, b in zip(first, second, strict=True)])


def ShapeEquals(tensor_proto: Any, shape: Any) -> bool:  # noqa: N802 - TensorFlow's name
    """Whether a message of an array has a shape, given as a message or as sizes.

    Raises:
      TypeError: one of them is something else.
    """
    if not isinstance(tensor_proto, TensorProto):
        raise TypeError("tensor_proto is not a tensor_pb2.TensorProto object")
    if not isinstance(shape, TensorShapeProto | list | tuple):
        raise TypeError("shape is not a list or tuple")
    return TensorShape(tensor_proto.tensor_shape) == TensorShape(shape)


def make_ndarray(tensor: Any) -> Any:
    """The array of a `TensorProto`."""
    return array_of_proto(tensor)
