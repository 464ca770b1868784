"""Embeddings: rows of a table by their numbers, of one array or of several that hold parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.checks import NOWHERE, check_range
from trainband.compat.ops.table import op


@op("", type="DynamicPartition", tensors="ids")
def places_in_part(ids: Any, number: int, rows: Sequence[int], strategy: str) -> Any:
    """Return where rows are in one part of a table; `NOWHERE` if they are in another part.

    Args:
      ids: the numbers of rows in the whole.
      number: of the part.
      rows: how many rows each part has.
      strategy: `mod`: the parts take turns; `div`: each has a range.
    """
    check_range(ids, sum(rows), "ids")
    if strategy == "mod":
        mine, place = ids % len(rows) == number, ids // len(rows)
    else:
        starts = np.concatenate([[0], np.cumsum(rows)])
        mine, place = (ids >= starts[number]) & (ids < starts[number + 1]), ids - starts[number]
    return jnp.where(mine, place, NOWHERE).astype(ids.dtype)


@op("", type="GatherV2", tensors="params indices")
def gather_or_zero(params: Any, indices: Any, axis: Any = 0) -> Any:
    """Rows by their numbers; zeros for numbers that are out of range."""
    return jnp.take(params, indices, axis=axis, mode="fill", fill_value=0)


@op("", type="clip_by_norm", tensors="rows")
def rows_clipped(rows: Any, max_norm: Any, first: int | None = None) -> Any:
    """Each row scaled down to a norm of at most `max_norm`. Its axes are the last, or those from `first` on."""
    axes = tuple(range(np.ndim(rows) - 1 if first is None else first, np.ndim(rows)))
    norms = jnp.sqrt(jnp.sum(rows * rows, axis=axes, keepdims=True))
    return rows * max_norm / jnp.maximum(norms, max_norm)
