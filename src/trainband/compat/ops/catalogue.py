"""All modules of operations: importing this fills the table."""

from __future__ import annotations

from trainband.compat.ops import (
    activations,
    array,
    clipping,
    convolution,
    cross_entropy,
    decay,
    embedding,
    feature_columns,
    indexing,
    losses,
    math,
    matrices,
    metrics,
    normalization,
    random,
    reductions,
)
from trainband.compat.ops.table import TABLE, Op

MODULES = (
    activations,
    array,
    clipping,
    convolution,
    cross_entropy,
    decay,
    embedding,
    feature_columns,
    indexing,
    losses,
    math,
    matrices,
    metrics,
    normalization,
    random,
    reductions,
)
"""The modules whose import fills the table."""


def v1_names() -> dict[str, dict[str, Op]]:
    """Return TensorFlow 1's operations by namespace, such as `tf.nn`, and name."""
    found: dict[str, dict[str, Op]] = {}
    for name, op in TABLE.items():
        space, _, last = name.rpartition(".")
        found.setdefault(space, {})[last] = op
    return found
