"""IndexedSlices: some rows of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.shapes import TensorShape
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.operations.defining import known


class IndexedSlices:
    """Rows of a larger tensor, and their numbers."""

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        self.values = convert(values)
        self.indices = convert(indices)
        self.dense_shape = None if dense_shape is None else convert(dense_shape)

    @property
    def dtype(self) -> DType:
        """Of the elements."""
        return self.values.dtype

    @property
    def shape(self) -> TensorShape:
        """The shape of the whole, as far as it is known."""
        if self.dense_shape is None:
            return TensorShape([None, *self.values.aval[0][1:]])
        return TensorShape([int(one) for one in np.asarray(self.dense_shape.numpy())])

    def __trainband_tensor__(self) -> Tensor:
        """The whole: rows of one number are added.

        Raises:
          ValueError: the shape of the whole is not known.
        """
        if self.dense_shape is None:
            raise ValueError("Tensor conversion requested for IndexedSlices with no dense_shape.")
        sizes = self.shape.as_list()
        found: Tensor = known("tf.math.unsorted_segment_sum")(self.values, self.indices, sizes[0])
        return found

    def __repr__(self) -> str:
        return f"IndexedSlices(indices={self.indices}, values={self.values}, dense_shape={self.dense_shape})"
