"""Embeddings: rows of a table by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainband.compat.ops import embedding, indexing, math
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.variable import PartitionedVariable
from trainband.compat.tf1.operations.recorder import recorded


def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,  # noqa: ARG001
    max_norm: float | None = None,
) -> Any:
    """Return rows by number, from one tensor or from several that hold its parts.

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
        found = recorded(indexing.gather)(parts[0], numbers, name=name or "embedding_lookup")
    else:
        found = _from_parts([convert(part) for part in parts], numbers, partition_strategy)
    return found if max_norm is None else recorded(embedding.rows_clipped)(found, max_norm, numbers.shape.ndims)


def _from_parts(parts: Sequence[Tensor], numbers: Tensor, strategy: str) -> Any:
    """Add up what each part gives: its own rows, and zeros for the rows of other parts."""
    rows = [part.shape.as_list()[0] or 0 for part in parts]
    place, gather = recorded(embedding.places_in_part), recorded(embedding.gather_or_zero)
    found = [gather(part, place(numbers, i, rows, strategy)) for i, part in enumerate(parts)]
    return recorded(math.add_n)(found, name="embedding_lookup")
