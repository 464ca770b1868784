"""Glimpses: parts of images around given centers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import sizes_of
from trainband.compat.ops.table import op


@op(
    "tf.image.extract_glimpse", type="ExtractGlimpse", tensors="input size offsets", shapes="size", random=True,
    flat=True, like={"offsets": "float32"}, v1="input size offsets centered normalized uniform_noise seed name",
)  # fmt: skip
def extract_glimpse(
    key: Any, input: Any, size: Any, offsets: Any, centered: bool = True, normalized: bool = True,  # noqa: A002
    uniform_noise: bool = True,
) -> Any:  # fmt: skip
    """A part of each image around a center; what lies outside of the image is noise, uniform or normal.

    Args:
      size: height and width.
      offsets: [batch, 2], the rows and columns of the centers.
      centered: whether they are counted from the middle of the image.
      normalized: whether they are shares of the image, which reaches from -1 to 1 if they are centered, else from 0.
    """
    batch, height, width, depth = input.shape
    rows, columns = sizes_of(size, "the size of a glimpse")
    sizes = np.array([height, width], np.float32)
    middle = offsets
    if normalized:
        middle = middle * (sizes / 2 if centered else sizes)
    if centered:
        middle = middle + sizes / 2
    begin = jnp.trunc(middle - np.array([rows, columns], np.float32) / 2).astype(np.int32)
    inner = jax.vmap(_part, in_axes=(0, 0, None))(jnp.asarray(input), begin, (rows, columns))
    places = [begin[:, axis, None] + np.arange(many) for axis, many in enumerate((rows, columns))]
    inside = [(place >= 0) & (place < limit) for place, limit in zip(places, (height, width), strict=True)]
    is_image = (inside[0][:, :, None] & inside[1][:, None, :])[..., None]
    draw = jax.random.uniform if uniform_noise else jax.random.normal
    return jnp.where(is_image, inner, draw(key, (batch, rows, columns, depth), input.dtype))


def _part(image: Any, begin: Any, size: tuple[int, int]) -> Any:
    rows, columns = (begin[axis] + np.arange(many) for axis, many in enumerate(size))
    return jnp.take(jnp.take(image, rows, 0, mode="clip"), columns, 1, mode="clip")
