"""What `tf.metrics` computes from its counts."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from trainband.compat.ops.table import op


@op("", type="DivNoNan", tensors="total count")
def quotient_of_counts(total: Any, count: Any) -> Any:
    """A total divided by a count; zero where nothing was counted."""
    return jnp.where(count > 0, total / jnp.where(count > 0, count, 1), 0)
