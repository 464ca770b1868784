"""Embeddings of several rows of a table at once."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.tf2.eager.execute import compute, convert
from trainband.compat.tf2.eager.networks import embedding_lookup
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.operations.defining import known
from trainband.compat.tf2.operations.sparse import SparseTensor, places, retain


def embedding_lookup_sparse(
    params: Any,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    combiner: str | None = None,
    max_norm: Any = None,
    name: str | None = None,
    allow_fast_lookup: bool = False,
) -> Tensor:
    """For each row of numbers, the sum, mean or quotient by the root of the squares of their rows in a table.

    Raises:
      ValueError: there is no such combiner.
    """
    del name, allow_fast_lookup
    how = combiner or "mean"
    if how not in ("mean", "sum", "sqrtn"):
        raise ValueError("combiner must be one of 'mean', 'sqrtn' or 'sum'")
    table = known("tf.concat")(list(params), 0) if isinstance(params, list | tuple) else params
    group = places(sp_ids)[:, 0]
    count = int(group.max(initial=-1)) + 1
    rows = embedding_lookup(table, sp_ids.values, max_norm)
    weights = convert(np.ones(len(group), np.float32)) if sp_weights is None else sp_weights.values

    def call(found: Any, factors: Any) -> Any:
        own = factors.astype(found.dtype)[:, None]
        total = jnp.zeros((count, *found.shape[1:]), found.dtype).at[group].add(found * own)
        if how == "sum":
            return (total,)
        power = own if how == "mean" else own**2
        weight = jnp.zeros((count, 1), found.dtype).at[group].add(power)
        by = weight if how == "mean" else jnp.sqrt(weight)
        return (jnp.where(by == 0, 0, total / jnp.where(by == 0, 1, by)),)

    return compute(("embedding_lookup_sparse", how, group.tobytes()), call, [rows, weights])[0]


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str = "mean",
    default_id: Any = None,
    max_norm: Any = None,
    name: str | None = None,
    allow_fast_lookup: bool = False,
) -> Tensor:
    """The same, with zeros, or the row of `default_id`, for rows without numbers."""
    del name, allow_fast_lookup
    numbers = np.asarray(sparse_ids.values.numpy())
    good = numbers >= 0
    if sparse_weights is not None and combiner != "sum":
        good &= np.asarray(sparse_weights.values.numpy()) > 0
    ids = retain(sparse_ids, good)
    weights = None if sparse_weights is None else retain(sparse_weights, good)
    height = int(np.asarray(sparse_ids.dense_shape.numpy())[0])
    empty = np.setdiff1d(np.arange(height), places(ids)[:, 0])
    at = np.concatenate([places(ids), np.stack([empty, np.zeros_like(empty)], 1)])
    order = np.lexsort(at.T[::-1])
    fill = np.full(len(empty), default_id or 0, numbers.dtype)
    filled = SparseTensor(
        at[order], np.concatenate([np.asarray(ids.values.numpy()), fill])[order], sparse_ids.shape.as_list()
    )
    if weights is not None:
        every = known("tf.concat")([weights.values, np.ones(len(empty), weights.dtype.numpy)], 0)
        weights = SparseTensor(at[order], known("tf.gather")(every, order), sparse_ids.shape.as_list())
    found = embedding_lookup_sparse(embedding_weights, filled, weights, combiner, max_norm)
    if default_id is None and len(empty):
        kept = np.ones([height, *[1] * (found.ndim - 1)], found.dtype.numpy)
        kept[empty] = 0
        found = found * kept
    return found
