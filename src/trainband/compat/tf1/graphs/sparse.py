"""SparseTensor: a tensor of which only some elements are stored, with their places."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trainband.compat.ops.dtypes import DType, as_dtype, int64
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.default_session import needed_session
from trainband.compat.tf1.graphs.graph import Graph, Operation, Tensor
from trainband.compat.tf1.graphs.record import convert, known_value


class SparseTensorValue(NamedTuple):
    """What a run gives for a `SparseTensor`, and what it can be fed."""

    indices: Any
    values: Any
    dense_shape: Any


class SparseTensor:
    """Some elements of a tensor that is zero elsewhere.

    Args:
      indices: [n, rank] int64, the places.
      values: [n], the elements.
      dense_shape: [rank] int64, of the whole.
    """

    def __init__(self, indices: Any, values: Any, dense_shape: Any = None, shape: Any = None) -> None:
        sizes = dense_shape if dense_shape is not None else shape
        self.indices: Tensor = convert(indices, _whole(indices), name="indices")
        """The places."""
        self.values: Tensor = convert(values, name="values")
        """The elements."""
        self.dense_shape: Tensor = convert(sizes, _whole(sizes), name="shape")
        """Of the whole."""
        if self.indices.shape.ndims is not None:
            self.indices.shape.with_rank(2)
        if self.values.shape.ndims is not None:
            self.values.shape.with_rank(1)

    @classmethod
    def from_value(cls, value: Any) -> SparseTensor:
        """Make one of what a run gave, or return it as it is.

        Raises:
          TypeError: it is neither.
        """
        if isinstance(value, SparseTensor):
            return value
        if not isinstance(value, tuple) or len(value) != 3:
            raise TypeError(f"Neither a SparseTensor nor SparseTensorValue: {value!r}.")
        return cls(*value)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Places, elements, and shape."""
        return self.indices, self.values, self.dense_shape

    @property
    def dtype(self) -> DType:
        """Of the elements."""
        return self.values.dtype

    @property
    def op(self) -> Operation:
        """What gives the elements."""
        return self.values.op

    @property
    def name(self) -> str:
        """That of the elements."""
        return self.values.name

    @property
    def graph(self) -> Graph:
        """Where it was recorded."""
        graph: Graph = self.values.graph
        return graph

    @property
    def shape(self) -> TensorShape:
        """What is known of the shape of the whole."""
        known = known_value(self.dense_shape)
        if known is not None:
            return TensorShape([None if one < 0 else int(one) for one in known])
        rank = self.dense_shape.shape.as_list()[0] if self.dense_shape.shape.ndims == 1 else None
        if rank is None and self.indices.shape.ndims == 2:
            rank = self.indices.shape.as_list()[1]
        return TensorShape(None if rank is None else [None] * rank)

    def get_shape(self) -> TensorShape:
        """What is known of the shape of the whole."""
        return self.shape

    def eval(self, feed_dict: Any = None, session: Any = None) -> SparseTensorValue:
        """Return its value in a session, by default in the default one."""
        found: SparseTensorValue = needed_session(session, "SparseTensor.eval").run(self, feed_dict)
        return found

    def control_operations(self) -> list[Operation]:
        """What gives its parts."""
        return [part.op for part in self.parts]

    def _nest_flatten(self) -> list[Any]:
        return list(self.parts)

    @classmethod
    def _nest_pack(cls, parts: Any) -> SparseTensor:
        return cls(*parts)

    def __repr__(self) -> str:
        return f"SparseTensor(indices={self.indices}, values={self.values}, dense_shape={self.dense_shape})"


def _whole(value: Any) -> DType | None:
    return None if isinstance(value, Tensor) else int64


def fed_parts(tensor: SparseTensor, value: Any) -> list[tuple[Tensor, Any]]:
    """The parts of a sparse tensor with what each is fed."""
    indices, values, shape = value
    rank = len(np.ravel(shape))
    return list(zip(tensor.parts, (np.reshape(indices, [-1, rank]), values, shape), strict=True))


def is_sparse(tensor: Any) -> bool:
    """Whether it is a sparse tensor."""
    return isinstance(tensor, SparseTensor | SparseTensorValue)


def convert_to_tensor_or_sparse_tensor(value: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Convert a value to a tensor, unless it is a sparse one already.

    Raises:
      RuntimeError: a sparse tensor has another dtype.
    """
    kind = None if dtype is None else as_dtype(dtype)
    if isinstance(value, SparseTensorValue):
        value = SparseTensor(*value)
    if isinstance(value, SparseTensor):
        if kind is not None and value.dtype != kind:
            raise RuntimeError(f"Sparse dtype: requested = {kind.name}, actual = {value.dtype.name}")
        return value
    return convert(value, kind, name)
