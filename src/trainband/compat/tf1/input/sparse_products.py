"""Products with sparse tensors, which have derivatives: compiled, for sizes that are rounded up to powers of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.dtypes import DType, float32, int64, uint8
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.hosted import is_hosted, record_source
from trainband.compat.tf1.graphs.record import convert, name_scope, record
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.operations.embedding import embedding_lookup

LEAST = 16
"""The least number of elements that a run is compiled for."""


def _is_data(tensor: Tensor) -> bool:
    """Whether a tensor is known before the compiled part, so that it has no derivative."""
    return is_hosted(tensor.op) or tensor.op.type in ("Const", "Placeholder")


class _Layout:
    """Columns of elements, and how many rows there are.

    Attributes:
      rows: of each element the number of its row; that of an element that only fills up is out of range.
      columns: further arrays, with zeros for elements that only fill up.
      carrier: an array with as many elements as there are rows: its size is what counts.
    """

    def __init__(self, rows: Tensor, columns: Sequence[Tensor], count: Tensor | None, known: int | None) -> None:
        pads = all(_is_data(one) for one in columns)
        inputs = [rows, *columns, *([] if count is None else [count])]

        def lay(_: Any, numbers: Any, *arrays: Any) -> list[Any]:
            many = int(arrays[-1]) if count is not None else int(numbers.max(initial=-1)) + 1
            size = len(numbers)
            padded = max(LEAST, 1 << (size - 1).bit_length()) if pads else size
            found = [_filled(numbers, padded, many)]
            if pads:
                found += [_filled(array, padded, 0) for array in arrays[: len(columns)]]
            return [*found, np.zeros(many, np.uint8)]

        outputs: list[Tensor] = record_source(
            "SparseLayout",
            lay,
            inputs if pads or count is not None else [rows],
            dtypes=[rows.dtype, *(one.dtype for one in columns if pads), uint8],
            shapes=[[None]] * (1 + len(columns) * pads) + [[known]],
        ).outputs
        self.rows, self.carrier = outputs[0], outputs[-1]
        self.columns = outputs[1:-1] if pads else list(columns)


def _filled(array: Any, size: int, filler: Any) -> Any:
    if len(array) == size:
        return array
    found = np.full(size, filler, array.dtype)
    found[: len(array)] = array
    return found


def _part(tensor: Tensor, column: int, dtype: DType = int64) -> Tensor:
    return record_source(
        "SparseColumn",
        lambda _, array: [array[..., column]],
        [tensor],
        dtypes=[dtype],
        shapes=[[None] * (tensor.shape.ndims == 2)],
    ).outputs[0]


def sparse_tensor_dense_matmul(
    sp_a: Any, b: Any, adjoint_a: bool = False, adjoint_b: bool = False, name: str | None = None
) -> Tensor:
    """The product of a sparse and a dense matrix."""
    left, right = SparseTensor.from_value(sp_a), convert(b)
    place = int(bool(adjoint_a))
    with name_scope(name, "SparseTensorDenseMatMul", None) as scope:
        rows, inner = _part(left.indices, place), _part(left.indices, 1 - place)
        known = left.shape.as_list()[place] if left.shape.ndims == 2 else None
        layout = _Layout(rows, [inner, left.values], _part(left.dense_shape, place), known)

        def multiply(numbers: Any, places: Any, values: Any, carrier: Any, matrix: Any) -> Any:
            other = jnp.swapaxes(matrix, 0, 1).conj() if adjoint_b else jnp.asarray(matrix)
            products = values[:, None] * other[places]
            return jax.ops.segment_sum(products, numbers, carrier.shape[0])

        sizes = right.shape.as_list() if right.shape.ndims == 2 else [None, None]
        return record(
            "SparseTensorDenseMatMul",
            multiply,
            [layout.rows, *layout.columns, layout.carrier, right],
            name=scope,
            dtypes=[right.dtype],
            shapes=[[known, sizes[0 if adjoint_b else 1]]],
        ).outputs[0]


def embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any = None,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
) -> Tensor:
    """For each row of numbers, the rows of a table added up, or their mean.

    Args:
      sp_weights: of each number; 1 when left out.
      combiner: `mean`, which is the default, `sum`, or `sqrtn`: the sum over the root of the sum of squared weights.

    Raises:
      TypeError: the numbers, or their weights, are not sparse.
      ValueError: no such combiner.
    """
    how = combiner or "mean"
    if how not in ("mean", "sqrtn", "sum"):
        raise ValueError("combiner must be one of 'mean', 'sqrtn' or 'sum'")
    if not isinstance(sp_ids, SparseTensor):
        raise TypeError("sp_ids must be SparseTensor")
    if sp_weights is not None and not isinstance(sp_weights, SparseTensor):
        raise TypeError("sp_weights must be either None or SparseTensor")
    if sp_weights is not None:
        for ids_part, weights_part in zip(sp_ids.parts, sp_weights.parts, strict=True):
            ids_part.shape.assert_is_compatible_with(weights_part.shape)
    with name_scope(name, "embedding_lookup_sparse", None) as scope:
        weights = _ones_like(sp_ids.values) if sp_weights is None else sp_weights.values
        layout = _Layout(_part(sp_ids.indices, 0), [sp_ids.values, weights], None, None)
        ids, factors = layout.columns
        found = embedding_lookup(params, ids, partition_strategy, max_norm=max_norm)
        dtype = found.dtype

        def combine(rows: Any, numbers: Any, weight: Any, carrier: Any) -> Any:
            weight = weight.astype(rows.dtype)
            many = carrier.shape[0]
            factor = weight.reshape((-1,) + (1,) * (rows.ndim - 1))
            total = jax.ops.segment_sum(rows * factor, numbers, many)
            if how == "sum":
                return total
            norm = jax.ops.segment_sum(factor if how == "mean" else factor * factor, numbers, many)
            norm = norm if how == "mean" else jnp.sqrt(norm)
            return jnp.where(norm == 0, 0, total / jnp.where(norm == 0, 1, norm))

        inner = TensorShape(found.shape.sizes[1:] if found.shape.sizes is not None else None)
        return record(
            "EmbeddingLookupSparse",
            combine,
            [found, layout.rows, factors, layout.carrier],
            name=scope,
            dtypes=[dtype],
            shapes=[TensorShape([None]).concatenate(inner)],
        ).outputs[0]


def _ones_like(tensor: Tensor) -> Tensor:
    return record_source(
        "OnesLike",
        lambda _, values: [np.ones(len(values), np.float32)],
        [tensor],
        dtypes=[float32],
        shapes=[[None]],
    ).outputs[0]


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str | None = None,
    default_id: int | None = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: float | None = None,
) -> Tensor:
    """Like `embedding_lookup_sparse`, for rows that may be empty or hold negative numbers: those count as none.

    An empty row gives zeros, or the row of `default_id`.
    """
    ids = SparseTensor.from_value(sparse_ids)
    given = [*ids.parts, *([] if sparse_weights is None else [sparse_weights.values])]

    def prune(_: Any, indices: Any, values: Any, shape: Any, *weights: Any) -> list[Any]:
        kept = values >= 0
        if weights and combiner != "sum":
            kept &= weights[0] > 0
        factor = weights[0][kept] if weights else np.ones(int(kept.sum()), np.float32)
        rows = indices[kept, 0]
        empty = np.setdiff1d(np.arange(shape[0]), rows)
        numbers = np.concatenate([rows, empty])
        order = np.argsort(numbers, kind="stable")
        filler = 0 if default_id is None else default_id
        weight = np.concatenate([factor, np.full(len(empty), default_id is not None, factor.dtype)])
        places = np.column_stack([numbers, np.zeros_like(numbers)])[order]
        return [places, np.concatenate([values[kept], np.full(len(empty), filler, values.dtype)])[order], weight[order]]

    kind = float32 if sparse_weights is None else sparse_weights.dtype
    op = record_source(
        "SparsePrune", prune, given, dtypes=[int64, ids.dtype, kind], shapes=[[None, 2], [None], [None]], name=name
    )
    places, values, weights = op.outputs
    found = embedding_lookup_sparse(
        embedding_weights,
        SparseTensor(places, values, ids.dense_shape),
        SparseTensor(places, weights, ids.dense_shape),
        partition_strategy,
        combiner=combiner,
        max_norm=max_norm,
    )
    rows = ids.shape.as_list()[0] if ids.shape.ndims else None
    if rows is not None:
        found.set_shape(TensorShape([rows]).concatenate(found.shape.sizes[1:] if found.shape.sizes else None))
    return found
