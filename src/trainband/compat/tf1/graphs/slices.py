"""IndexedSlices: some rows of a tensor that is zero elsewhere, such as the gradient of an embedding."""

from __future__ import annotations

from typing import Any, NamedTuple

from trainband.compat.ops.dtypes import DType
from trainband.compat.ops.indexing import dense_from_rows
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import Graph, Operation, Tensor
from trainband.compat.tf1.graphs.record import known_value, record_tensor


class IndexedSlicesValue(NamedTuple):
    """What a run gives for `IndexedSlices`, and what they can be fed."""

    values: Any
    indices: Any
    dense_shape: Any = None


class IndexedSlices:
    """Rows and their numbers; the rows of a number that is listed twice add up.

    Args:
      values: the rows.
      indices: their numbers along the first axis of the whole.
      dense_shape: of the whole.
    """

    def __init__(self, values: Tensor, indices: Tensor, dense_shape: Any = None) -> None:
        self.values = values
        """The rows."""
        self.indices = indices
        """Their numbers."""
        self.dense_shape = dense_shape
        """Of the whole."""

    @property
    def dtype(self) -> DType:
        """Of the rows."""
        return self.values.dtype

    @property
    def shape(self) -> TensorShape:
        """Of the whole."""
        known = known_value(self.dense_shape) if isinstance(self.dense_shape, Tensor) else self.dense_shape
        return TensorShape(known)

    def get_shape(self) -> TensorShape:
        """Of the whole."""
        return self.shape

    @property
    def graph(self) -> Graph:
        """Where it was recorded."""
        graph: Graph = self.values.graph
        return graph

    @property
    def op(self) -> Operation:
        """What gives the rows."""
        return self.values.op

    @property
    def name(self) -> str:
        """That of the rows."""
        return self.values.name

    @property
    def device(self) -> str:
        """That of the rows."""
        return self.values.device

    def as_tensor(self) -> Tensor:
        """The whole, with zeros where there are no rows.

        Raises:
          ValueError: its shape is not known.
        """
        sizes = self.shape
        if not sizes.is_fully_defined():
            raise ValueError("Tensor conversion requested for IndexedSlices without a known dense_shape.")
        shape = tuple(size or 0 for size in sizes.sizes or ())
        return record_tensor(
            "IndexedSlicesToTensor",
            lambda values, indices: dense_from_rows(values, indices, shape),
            [self.values, self.indices],
        )

    def _nest_flatten(self) -> list[Tensor]:
        return [self.values, self.indices]

    def _nest_pack(self, values: list[Any]) -> IndexedSlices:
        return IndexedSlices(values[0], values[1], self.dense_shape)

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self.values, self.indices, self.dense_shape)  # type: ignore[operator]

    def __repr__(self) -> str:
        return f"IndexedSlices(indices={self.indices}, values={self.values})"


for _symbol in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv"):

    def _as_whole(self: IndexedSlices, *others: Any, _method: str = f"__{_symbol}__") -> Any:
        if _method in ("__mul__", "__rmul__", "__truediv__"):
            return IndexedSlices(getattr(Tensor, _method)(self.values, *others), self.indices, self.dense_shape)
        return getattr(Tensor, _method)(self.as_tensor(), *others)

    setattr(IndexedSlices, f"__{_symbol}__", _as_whole)
