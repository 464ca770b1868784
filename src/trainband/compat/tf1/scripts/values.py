"""The values of constants, and `TensorProto`s."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import array_of, as_dtype
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
    """An array as a `TensorProto`."""
    del verify_shape, allow_broadcast
    array = array_of(values, None if dtype is None else as_dtype(dtype))
    if shape is not None:
        array = np.broadcast_to(array, shape) if array.size == 1 else array.reshape(shape)
    return tensor_proto(array)


def make_ndarray(tensor: Any) -> Any:
    """The array of a `TensorProto`."""
    return array_of_proto(tensor)
