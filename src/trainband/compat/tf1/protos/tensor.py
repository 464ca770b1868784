"""Arrays as TensorProtos, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import as_dtype, string
from trainband.compat.tf1.protos.graph import TensorProto as TensorProto
from trainband.compat.tf1.protos.graph import TensorShapeProto as TensorShapeProto

_LISTS = {
    "float32": "float_val", "float64": "double_val", "int32": "int_val", "int64": "int64_val", "bool": "bool_val",
    "string": "string_val", "int16": "int_val", "int8": "int_val", "uint8": "int_val", "uint16": "int_val",
    "uint32": "uint32_val", "uint64": "uint64_val", "complex64": "scomplex_val", "complex128": "dcomplex_val",
    "float16": "half_val", "bfloat16": "half_val",
}  # fmt: skip


MOST_BYTES = 2 << 30
"""Of a constant: what protocol buffers can hold. Its last element may stand for any number of them."""
_AS_BYTES = ("float32", "float64", "int32", "uint8", "int16", "int8", "int64")
"""What TensorFlow writes as bytes, from two elements on."""


def tensor_proto(array: np.ndarray[Any, Any], shape: Sequence[int] | None = None) -> Any:
    """An array as a `TensorProto`. The last element fills a larger shape."""
    kind = as_dtype(array.dtype)
    sizes = array.shape if shape is None else tuple(shape)
    dims = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])
    result = TensorProto(dtype=kind.as_datatype_enum, tensor_shape=dims)
    flat = np.ascontiguousarray(array).reshape(-1)
    if kind == string:
        result.string_val.extend(one if isinstance(one, bytes) else str(one).encode() for one in flat)
    elif kind.name in _AS_BYTES and flat.size > 1 and flat.size == math.prod(sizes):
        result.tensor_content = flat.tobytes()
    else:
        if kind.is_complex:
            flat = flat.view(kind.real_dtype.numpy)
        elif _LISTS[kind.name] == "half_val":
            flat = flat.view(np.uint16)
        getattr(result, _LISTS[kind.name]).extend(flat.tolist())
    return result


def array_of_proto(tensor: Any) -> Any:
    """The array of a `TensorProto`."""
    shape = [one.size for one in tensor.tensor_shape.dim]
    kind = as_dtype(tensor.dtype)
    if min(shape, default=0) < 0 or math.prod(shape) * kind.numpy.itemsize > MOST_BYTES:
        raise ValueError(f"A TensorProto of shape {shape[:8]} is larger than {MOST_BYTES:,} bytes, or none at all.")
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, kind.numpy).reshape(shape).copy()
    listed = list(getattr(tensor, _LISTS[kind.name]))
    if kind.is_complex:
        found = np.array(listed, kind.real_dtype.numpy).view(kind.numpy)
    elif _LISTS[kind.name] == "half_val":
        found = np.array(listed, np.uint16).view(kind.numpy)
    else:
        found = np.array(listed, kind.numpy)
    size = math.prod(shape)
    if found.size in (0, size):
        return (found if found.size == size else np.zeros(size, kind.numpy)).reshape(shape)
    return np.concatenate([found, np.repeat(found[-1:], size - found.size)]).reshape(shape)
