"""Where images change: differences of neighbours, and Sobel's filter."""

from __future__ import annotations

from typing import Any

from trainband.compat.ops.arrays import ArgumentError, numpy_or_jax
from trainband.compat.ops.table import op


@op(v1_names="tf.image.image_gradients", type="image_gradients", tensors="image", folds=True, outputs=2, v1="image")
def image_gradients(image: Any) -> Any:
    """The differences to the next row and to the next column of [n, height, width, channels]; 0 in the last ones."""
    if len(image.shape) != 4:
        raise ArgumentError(f"image_gradients expects a 4D tensor [batch_size, h, w, d], not {image.shape}.")
    xp = numpy_or_jax(image)
    down = xp.pad(image[:, 1:] - image[:, :-1], [(0, 0), (0, 1), (0, 0), (0, 0)])
    right = xp.pad(image[:, :, 1:] - image[:, :, :-1], [(0, 0), (0, 0), (0, 1), (0, 0)])
    return down, right


@op(v1_names="tf.image.sobel_edges", type="sobel_edges", tensors="image", folds=True, v1="image")
def sobel_edges(image: Any) -> Any:
    """Sobel's filter of [n, height, width, channels]: on a new last axis, the change downwards and to the right."""
    if len(image.shape) != 4:
        raise ArgumentError(f"sobel_edges expects a 4D tensor [batch_size, h, w, d], not {image.shape}.")
    xp = numpy_or_jax(image)
    wide = xp.pad(image, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="reflect")
    across = wide[:, :, :-2] + 2 * wide[:, :, 1:-1] + wide[:, :, 2:]
    along = wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]
    return xp.stack([across[:, 2:] - across[:, :-2], along[:, :, 2:] - along[:, :, :-2]], -1)
