"""SparseTensor: the places and values of what is not zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import as_dtype, string
from trainband.compat.tf1.input.packing import rows_of
from trainband.compat.tf2.data.blocks import Blocks, Single
from trainband.compat.tf2.data.passes import Pass, Recipe
from trainband.compat.tf2.data.structure import LEAF, Composite
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.shapes import TensorShape
from trainband.compat.tf2.eager.sparse_tensor import SparseTensor as SparseTensor
from trainband.compat.tf2.eager.tensor import Tensor


class SparseTensorSpec:
    """What is known of a sparse tensor."""

    def __init__(self, shape: Any = None, dtype: Any = "float32") -> None:
        self.shape, self.dtype = TensorShape(shape), as_dtype(dtype)

    def batched(self, count: int | None) -> SparseTensorSpec:
        """That of several in one."""
        return SparseTensorSpec(None if self.shape.sizes is None else [count, *self.shape.sizes], self.dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SparseTensorSpec) and self.shape == other.shape and self.dtype is other.dtype

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"SparseTensorSpec({self.shape!r}, {self.dtype!r})"


_FORM = Composite(SparseTensor, [LEAF, LEAF, LEAF])


def rows_of_sparse(arrays: Any) -> Recipe:
    """The rows of a sparse tensor.

    Raises:
      NotImplementedError: it is among other things.
    """
    if not isinstance(arrays, SparseTensor):
        raise NotImplementedError("from_tensor_slices takes a sparse tensor alone, or dense ones.")
    indices, values, shape = (np.asarray(part.array) for part in arrays.__trainband_parts__())
    found = rows_of(indices, values, shape)

    def start(_: Pass) -> Blocks:
        return (Single(_FORM, tuple(np.asarray(part) for part in row)) for row in found)

    return Recipe(
        kind="sparse_slices",
        start=start,
        spec=lambda: SparseTensorSpec(shape[1:].tolist(), values.dtype),
        count=lambda: len(found),
    )


def from_dense(tensor: Any, name: str | None = None) -> SparseTensor:
    """What is not zero in a tensor."""
    del name
    array = np.asarray(convert(tensor).array)
    empty = b"" if array.dtype == object else 0
    places = np.argwhere(array != empty)
    return SparseTensor(Tensor(places), Tensor(array[tuple(places.T)]), Tensor(np.array(array.shape, np.int64)))


def to_dense(
    sp_input: SparseTensor, default_value: Any = None, validate_indices: bool = True, name: str | None = None
) -> Tensor:
    """The whole tensor, with a default value where nothing is kept."""
    del validate_indices, name
    indices, values, shape = (np.asarray(part.array) for part in sp_input.__trainband_parts__())
    if default_value is None:
        default_value = b"" if sp_input.dtype is string else 0
    filling = np.asarray(convert(default_value).array) if not isinstance(default_value, bytes | str) else default_value
    if isinstance(filling, str):
        filling = filling.encode()
    whole = np.empty(tuple(shape.tolist()), values.dtype)
    whole[...] = filling
    whole[tuple(indices.T)] = values
    return Tensor(whole)
