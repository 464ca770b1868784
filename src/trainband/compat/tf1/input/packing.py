"""Sparse tensors as single values, so that a queue can hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, int64, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.sparse import SparseTensor, SparseTensorValue


def packed(tensor: SparseTensor, many: bool = False) -> Tensor:
    """A sparse tensor as one element, or as one for each of its rows."""

    def pack(_: Any, indices: Any, values: Any, shape: Any) -> list[Any]:
        rows = rows_of(indices, values, shape) if many else [SparseTensorValue(indices, values, shape)]
        found = np.empty(len(rows), object)
        for i, row in enumerate(rows):
            found[i] = row
        return [found if many else found.reshape(())]

    first = tensor.shape.as_list()[:1] if many and tensor.shape.sizes else [None] * many
    return record_source("SerializeSparse", pack, tensor.parts, dtypes=[string], shapes=[first]).outputs[0]


def unpacked(tensor: Tensor, dtype: DType, row: TensorShape) -> SparseTensor:
    """What was packed, as rows of one sparse tensor."""

    def unpack(_: Any, elements: Any) -> Sequence[Any]:
        return stacked(list(elements), dtype)

    rank = None if row.sizes is None else len(row) + 1
    op = record_source(
        "DeserializeManySparse",
        unpack,
        [tensor],
        dtypes=[int64, dtype, int64],
        shapes=[[None, rank], [None], [rank]],
    )
    return SparseTensor(*op.outputs)


def stacked(rows: Sequence[Any], dtype: DType) -> tuple[Any, Any, Any]:
    """Sparse values as rows of one: its places, elements and shape."""
    shapes = np.array([row[2] for row in rows], np.int64).reshape(len(rows), -1)
    counts = [len(row[1]) for row in rows]
    numbers = np.repeat(np.arange(len(rows), dtype=np.int64), counts)
    inner = np.concatenate([np.asarray(row[0], np.int64).reshape(len(row[1]), shapes.shape[1]) for row in rows])
    values = np.concatenate([np.asarray(row[1], dtype.numpy) for row in rows])
    return np.column_stack([numbers, inner]), values, np.array([len(rows), *shapes.max(0)], np.int64)


def rows_of(indices: Any, values: Any, shape: Any) -> list[SparseTensorValue]:
    """The rows of a sparse tensor."""
    found = []
    for number in range(int(shape[0])):
        mine = indices[:, 0] == number
        found.append(SparseTensorValue(indices[mine, 1:], values[mine], shape[1:]))
    return found
