"""All modules of operations: importing this fills the table."""

from __future__ import annotations

from trainband.compat.ops import (
    activations,
    array,
    bitwise,
    boxes,
    candidates,
    choosing,
    clipping,
    colors,
    convolution,
    cropping,
    cross_entropy,
    ctc,
    data_formats,
    decay,
    edges,
    embedding,
    feature_columns,
    fractional_pooling,
    glimpses,
    image_quality,
    indexing,
    keras_losses,
    losses,
    math,
    matrices,
    metrics,
    normalization,
    pooling,
    random,
    raw,
    rearranging,
    reductions,
    resizing,
    segments,
    spectral,
)
from trainband.compat.ops.table import TABLE, Op

MODULES = (
    activations,
    array,
    bitwise,
    candidates,
    boxes,
    choosing,
    clipping,
    colors,
    convolution,
    cropping,
    cross_entropy,
    data_formats,
    ctc,
    decay,
    edges,
    embedding,
    feature_columns,
    fractional_pooling,
    glimpses,
    image_quality,
    indexing,
    keras_losses,
    losses,
    math,
    matrices,
    metrics,
    normalization,
    pooling,
    random,
    raw,
    rearranging,
    reductions,
    segments,
    spectral,
    resizing,
)
"""The modules whose import fills the table."""


def v1_names() -> dict[str, dict[str, Op]]:
    """Return TensorFlow 1's operations by namespace, such as `tf.nn`, and name."""
    found: dict[str, dict[str, Op]] = {}
    for name, op in TABLE.items():
        space, _, last = name.rpartition(".")
        found.setdefault(space, {})[last] = op
    return found
