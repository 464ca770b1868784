"""Combiners: several rows of an example as one. For use in a loss; traceable and differentiable.

The formulas are those of TensorFlow's `embedding_lookup_sparse`.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp

from trainband.errors import ModelError

How = Literal["sum", "mean", "sqrtn"]


def combined(rows: Any, how: How, *, mask: Any = None, weights: Any = None) -> jax.Array:
    """Combines the rows of each example: (..., n, dim) -> (..., dim).

    Args:
      rows: of a feature with n ids an example.
      how: `sum`; `mean`, the sum divided by that of the weights; `sqrtn`, divided by the root of the sum of their
        squares. Of no rows, zeros.
      mask: (..., n), which of the ids count: those that only fill an example up do not.
      weights: (..., n), of each row; 1 if not given.

    Raises:
      ModelError: `how` is something else.
    """
    rows = jnp.asarray(rows)
    of_rows = jnp.ones(rows.shape[:-1], rows.dtype) if weights is None else jnp.asarray(weights, rows.dtype)
    if mask is not None:
        of_rows = jnp.where(mask, of_rows, 0)
    return _divided((rows * of_rows[..., None]).sum(-2), of_rows.sum(-1), (of_rows**2).sum(-1), how)


def combined_ragged(rows: Any, lengths: Any, how: How, *, weights: Any = None) -> jax.Array:
    """Combines rows that lie one after the other, a different number for each example: (total, dim) -> (n, dim).

    Args:
      rows: of all examples; what follows the sum of `lengths` does not count.
      lengths: (n,) how many rows each example has.
      how, weights: as for `combined`; the weights are (total,).

    Raises:
      ModelError: `how` is something else.
    """
    rows, lengths = jnp.asarray(rows), jnp.asarray(lengths)
    count, total = lengths.shape[0], rows.shape[0]
    example = jnp.searchsorted(jnp.cumsum(lengths), jnp.arange(total), side="right")  # `count` for what follows
    of_rows = jnp.ones(total, rows.dtype) if weights is None else jnp.asarray(weights, rows.dtype)

    def summed(values: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(values, example, count + 1, indices_are_sorted=True)[:count]

    return _divided(summed(rows * of_rows[:, None]), summed(of_rows), summed(of_rows**2), how)


def _divided(total: jax.Array, weights: jax.Array, squares: jax.Array, how: str) -> jax.Array:
    if how == "sum":
        return total
    if how not in ("mean", "sqrtn"):
        raise ModelError(f"rows are combined by 'sum', 'mean' or 'sqrtn', not {how!r}.")
    by = weights if how == "mean" else jnp.sqrt(jnp.where(squares == 0, 1, squares))
    return total / jnp.where(by == 0, 1, by)[..., None]
