"""What feature columns compute from numbers of categories: rows that are looked up and combined, and counts.

An example has up to N categories, as a row of a matrix [batch, N]; negative numbers stand for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from trainband.compat.ops.checks import NOWHERE
from trainband.compat.ops.table import op


@op("", type="Bucketize", tensors="values", flat=True)
def buckets_of(values: Any, boundaries: Sequence[float]) -> Any:
    """Return how many boundaries each number has reached."""
    edges = jnp.asarray(boundaries, jnp.float32)
    return jnp.searchsorted(edges, jnp.asarray(values, jnp.float32), side="right").astype(jnp.int64)


@op("", type="Bucketize", tensors="buckets", flat=True)
def ids_of_buckets(buckets: Any, count: int) -> Any:
    """Number the buckets of several values [batch, N] through: those of the second begin at `count`."""
    return buckets + count * jnp.arange(buckets.shape[1], dtype=buckets.dtype)


@op("", type="Select", tensors="ids", flat=True)
def rows_or_none(ids: Any) -> Any:
    """Return the categories as rows of a table; `NOWHERE` where there is none."""
    return jnp.where(ids < 0, NOWHERE, ids)


@op("", type="SparseSegmentSum", tensors="rows ids weights", optional="weights")
def combined_rows(rows: Any, ids: Any, weights: Any, combiner: str) -> Any:
    """Return each example's sum, mean or `sqrtn` of rows [batch, N, size]; zeros where it has no category.

    Raises:
      ValueError: no such combiner.
    """
    there = (ids >= 0).astype(rows.dtype)
    weight = there if weights is None else there * jnp.asarray(weights, rows.dtype)
    total = jnp.sum(rows * weight[..., None], axis=1)
    if combiner == "sum":
        return total
    if combiner not in ("mean", "sqrtn"):
        raise ValueError(f"combiner must be one of 'mean', 'sqrtn' or 'sum', got {combiner!r}")
    size = jnp.sum(weight, axis=1) if combiner == "mean" else jnp.sqrt(jnp.sum(weight * weight, axis=1))
    some = size != 0
    return jnp.where(some[:, None], total / jnp.where(some, size, 1)[:, None], 0)


@op("", type="OneHot", tensors="ids weights", optional="weights", flat=True)
def counted_ids(ids: Any, weights: Any, depth: int) -> Any:
    """Return how often each example has each category, or the sum of those times' weights, [batch, depth]."""
    hot = (ids[..., None] == jnp.arange(depth)).astype(jnp.float32)
    if weights is not None:
        hot = hot * jnp.asarray(weights, jnp.float32)[..., None]
    return jnp.sum(hot, axis=-2)
