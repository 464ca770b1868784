"""Embeddings: rows of a table by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert, record_tensor
from trainband.compat.tf1.graphs.variable import PartitionedVariable
from trainband.compat.tf1.operations import arithmetic
from trainband.compat.tf1.operations.indexing import gather


def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,  # noqa: ARG001
    max_norm: float | None = None,
) -> Tensor:
    """The rows of these numbers, from one tensor or from several that hold the parts of one.

    Raises:
      ValueError: an unknown strategy, or no parts.
    """
    parts = list(params.parts) if isinstance(params, PartitionedVariable) else params
    if not isinstance(parts, list | tuple):
        parts = [parts]
    if not parts:
        raise ValueError("Need at least one param")
    if partition_strategy not in ("mod", "div"):
        raise ValueError(f"Unrecognized partition strategy: {partition_strategy}")
    numbers = convert(ids)
    if len(parts) == 1:
        found = gather(parts[0], numbers, name=name or "embedding_lookup")
    else:
        found = _from_parts([convert(part) for part in parts], numbers, partition_strategy)
    if max_norm is None:
        return found

    def clip(x: Any) -> Any:
        norms = jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))
        return x * max_norm / jnp.maximum(norms, max_norm)

    return record_tensor("clip_by_norm", clip, [found])


def _from_parts(parts: Sequence[Tensor], numbers: Tensor, strategy: str) -> Tensor:
    """The sum of what each part gives: rows of its own, and zeros for those of others."""
    count = len(parts)
    rows = [part.shape.as_list()[0] or 0 for part in parts]
    starts = np.concatenate([[0], np.cumsum(rows)])
    found = []
    for i, part in enumerate(parts):

        def local(ids: Any, i: int = i) -> Any:
            if strategy == "mod":
                mine, place = ids % count == i, ids // count
            else:
                mine, place = (ids >= starts[i]) & (ids < starts[i + 1]), ids - starts[i]
            return jnp.where(mine, place, rows[i]).astype(ids.dtype)  # out of range: no row, and no gradient

        places = record_tensor("DynamicPartition", local, [numbers])
        found.append(
            record_tensor(
                "GatherV2",
                lambda x, ids: jnp.take(x, ids, axis=0, mode="fill", fill_value=0),
                [part, places],
                attributes={"axis": 0},
            )
        )
    return arithmetic.add_n(found, name="embedding_lookup")
