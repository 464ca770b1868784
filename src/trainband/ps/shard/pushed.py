"""A pushed gradient as arrays: the blocks of a shard, and for each table the ids and gradients of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.ps.shard.shard import Shard


def arrays_of_push(shard: Shard) -> int:
    """How many arrays a gradient for this shard has."""
    return len(shard.layout.blocks) + 2 * len(shard.tables)


def gradient_from_wire(
    shard: Shard, body: Sequence[NDArray[np.uint8]], wire_dtype: str = ""
) -> tuple[NDArray[Any], ...] | None:
    """A gradient's arrays, as views; `None` if their number or sizes are wrong.

    Raises:
      DataError: see `ShardTables.gradient_from_wire`.
    """
    blocks = len(shard.layout.blocks)
    gradient = shard.layout.from_wire(body[:blocks], wire_dtype)
    rows = shard.tables.gradient_from_wire(body[blocks:])
    return None if gradient is None or rows is None else (*gradient, *rows)


def with_state_of(
    shard: Shard, gradient: Sequence[NDArray[Any]], source: Sequence[NDArray[Any]] | None
) -> tuple[NDArray[Any], ...]:
    """`gradient` with the model state that `source` pushed; without one, with the state as it is now."""
    blocks = len(shard.layout.blocks)
    state = source if source is not None else shard.newest.arrays()
    merged = tuple(
        mine if block.trained else theirs
        for block, mine, theirs in zip(shard.layout.blocks, gradient[:blocks], state[:blocks], strict=True)
    )
    return (*merged, *gradient[blocks:])
