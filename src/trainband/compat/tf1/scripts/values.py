"""The values of constants, and `TensorProto`s."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorboardX.proto.tensor_pb2 import TensorProto as TensorProto
from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto as TensorShapeProto

from trainband.compat.ops.dtypes import array_of, as_dtype, string
from trainband.compat.tf1.graphs.record import known_value

_LISTS = {
    "float32": "float_val", "float64": "double_val", "int32": "int_val", "int64": "int64_val", "bool": "bool_val",
    "string": "string_val", "int16": "int_val", "int8": "int_val", "uint8": "int_val", "uint16": "int_val",
}  # fmt: skip


def constant_value(tensor: Any, partial: bool = False) -> Any:
    """The value of a tensor that follows from constants, as an array; `None` if it does not."""
    del partial
    return known_value(tensor)


def make_tensor_proto(
    values: Any, dtype: Any = None, shape: Any = None, verify_shape: bool = False, allow_broadcast: bool = False
) -> Any:
    """An array as a `TensorProto`."""
    del verify_shape, allow_broadcast
    array = array_of(values, None if dtype is None else as_dtype(dtype))
    if shape is not None:
        array = np.broadcast_to(array, shape) if array.size == 1 else array.reshape(shape)
    kind = as_dtype(array.dtype)
    sizes = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in array.shape])
    result = TensorProto(dtype=kind.as_datatype_enum, tensor_shape=sizes)
    if kind == string:
        result.string_val.extend(one if isinstance(one, bytes) else str(one).encode() for one in array.ravel())
    else:
        result.tensor_content = np.ascontiguousarray(array).tobytes()
    return result


def make_ndarray(tensor: Any) -> Any:
    """The array of a `TensorProto`."""
    shape = [one.size for one in tensor.tensor_shape.dim]
    kind = as_dtype(tensor.dtype)
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, kind.numpy).reshape(shape).copy()
    found = np.array(list(getattr(tensor, _LISTS[kind.name])), kind.numpy)
    return np.broadcast_to(found, shape).copy() if found.size == 1 else found.reshape(shape)
