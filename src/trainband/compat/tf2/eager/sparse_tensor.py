"""SparseTensor: the places and values of those elements of a tensor that are kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.ops.table import TABLE
from trainband.compat.tf2.eager.execute import TENSORS, convert, function_of
from trainband.compat.tf2.eager.shapes import TensorShape
from trainband.compat.tf2.eager.tensor import Tensor


class SparseTensor:
    """Some elements of a tensor.

    Args:
      indices: [n, rank], the places.
      values: [n], the elements.
      dense_shape: [rank], the shape.
    """

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        self.indices = convert(indices, None if TENSORS.is_tensor(indices) else as_dtype("int64"))
        self.values = convert(values)
        self.dense_shape = convert(dense_shape, None if TENSORS.is_tensor(dense_shape) else as_dtype("int64"))
        if self.indices.ndim != 2 and self.indices.aval[0] != (0,):
            raise ValueError(f"indices must have rank 2, got shape {self.indices.shape}")
        if self.indices.aval[0][0] != self.values.aval[0][0]:
            raise ValueError(f"Dimensions {self.indices.aval[0][0]} and {self.values.aval[0][0]} are not compatible")

    @classmethod
    def of_parts(cls, *parts: Any) -> SparseTensor:
        """Of its three tensors."""
        return cls(*parts)

    def __trainband_parts__(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.indices, self.values, self.dense_shape

    @classmethod
    def from_value(cls, value: Any) -> SparseTensor:
        """Of something with the same three parts."""
        return cls(value.indices, value.values, value.dense_shape)

    @property
    def dtype(self) -> DType:
        """Of the elements."""
        return self.values.dtype

    @property
    def shape(self) -> TensorShape:
        """The shape."""
        if self.dense_shape.is_traced:
            return TensorShape([None] * self.rank)
        return TensorShape(np.asarray(self.dense_shape.array).tolist())

    def get_shape(self) -> TensorShape:
        """The shape."""
        return self.shape

    @property
    def rank(self) -> int:
        """How many axes."""
        return self.dense_shape.aval[0][0]

    def with_values(self, new_values: Any) -> SparseTensor:
        """The same places with other elements."""
        return SparseTensor(self.indices, new_values, self.dense_shape)

    def __truediv__(self, other: Any) -> SparseTensor:
        return self.with_values(self.values / self._of(other))

    def __mul__(self, other: Any) -> SparseTensor:
        return self.with_values(self.values * self._of(other))

    __rmul__ = __mul__

    def __neg__(self) -> SparseTensor:
        return self.with_values(-self.values)

    def _of(self, dense: Any) -> Tensor:
        """The elements of a dense tensor, stretched to the shape, at the places."""
        whole = convert(dense, None if TENSORS.is_tensor(dense) else self.dtype)
        if not whole.ndim:
            return whole
        stretched = function_of(TABLE["tf.broadcast_to"])(whole, self.shape.as_list())
        found: Tensor = function_of(TABLE["tf.gather_nd"])(stretched, self.indices)
        return found

    def __repr__(self) -> str:
        return f"SparseTensor(indices={self.indices}, values={self.values}, dense_shape={self.dense_shape})"
