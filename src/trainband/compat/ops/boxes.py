"""Boxes in images: drawn, cut out, and chosen by chance. A box is [top, left, bottom, right], from 0 to 1."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, numpy_or_jax, sizes_of
from trainband.compat.ops.dtypes import float32
from trainband.compat.ops.table import op

_COLORS = [
    *([1, 1, 0, 1], [0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 0, 1], [0.5, 0, 0.5, 1]),
    *([0.5, 0.5, 0, 1], [0.5, 0, 0, 1], [0, 0, 0.5, 1], [0, 1, 1, 1], [1, 0, 1, 1]),
]


@op(v1_names="tf.image.draw_bounding_boxes", type="DrawBoundingBoxes", tensors="images boxes colors",
    optional="colors", v1="images boxes name colors")  # fmt: skip
def draw_bounding_boxes(images: Any, boxes: Any, colors: Any = None) -> Any:
    """Images with the edges of boxes, [batch, count, 4], in them."""
    height, width, depth = images.shape[1:]
    palette = jnp.asarray(np.array(_COLORS, np.float32) if colors is None else colors)
    if depth == 1:
        palette = jnp.ones_like(palette)
    rows, columns = jnp.arange(height)[None, :, None], jnp.arange(width)[None, None, :]
    for number in range(boxes.shape[1]):
        box = boxes[:, number, :].astype(np.float32)
        top, bottom = (jnp.trunc(box[:, i] * (height - 1))[:, None, None] for i in (0, 2))
        left, right = (jnp.trunc(box[:, i] * (width - 1))[:, None, None] for i in (1, 3))
        inside_rows = (rows >= jnp.maximum(top, 0)) & (rows <= jnp.minimum(bottom, height - 1))
        inside_columns = (columns >= jnp.maximum(left, 0)) & (columns <= jnp.minimum(right, width - 1))
        edge = (inside_rows & ((columns == left) | (columns == right))) | (
            inside_columns & ((rows == top) | (rows == bottom))
        )
        edge = edge & (top <= bottom) & (left <= right)
        color = palette[number % palette.shape[0]][:depth].astype(images.dtype)
        images = jnp.where(edge[..., None], color, images)
    return images


@op(v1_names="tf.image.crop_and_resize", type="CropAndResize", tensors="image boxes box_ind crop_size",
    shapes="crop_size",
    v1="image boxes box_ind crop_size method extrapolation_value name box_indices=box_ind")  # fmt: skip
def crop_and_resize(
    image: Any, boxes: Any, box_ind: Any, crop_size: Any, method: str = "bilinear", extrapolation_value: Any = 0
) -> Any:
    """Boxes of images, each resized to `crop_size`. `box_ind` says of which image each box is."""
    if method not in ("bilinear", "nearest"):
        raise ArgumentError("method must be 'bilinear' or 'nearest'")
    height, width = image.shape[1:3]

    def places(begin: Any, end: Any, whole: int, count: int) -> tuple[Any, Any]:
        if count > 1:
            found = begin[:, None] * (whole - 1) + jnp.arange(count) * (
                (end - begin)[:, None] * (whole - 1) / (count - 1)
            )
        else:
            found = 0.5 * (begin + end)[:, None] * (whole - 1)
        return found, (found >= 0) & (found <= whole - 1)

    rows, columns = sizes_of(crop_size, "the size of crops")
    y, y_inside = places(boxes[:, 0], boxes[:, 2], height, rows)
    x, x_inside = places(boxes[:, 1], boxes[:, 3], width, columns)
    picked = jnp.asarray(image)[box_ind].astype(np.float32)

    def at(which_y: Any, which_x: Any) -> Any:
        row = jnp.clip(which_y, 0, height - 1).astype(np.int32)[:, :, None, None]
        column = jnp.clip(which_x, 0, width - 1).astype(np.int32)[:, None, :, None]
        return jnp.take_along_axis(jnp.take_along_axis(picked, row, 1), column, 2)

    if method == "nearest":
        found = at(jnp.round(y), jnp.round(x))
    else:
        top, left = jnp.floor(y), jnp.floor(x)
        down, right = (y - top)[:, :, None, None], (x - left)[:, None, :, None]
        bottom, end = jnp.ceil(y), jnp.ceil(x)
        upper = at(top, left) + (at(top, end) - at(top, left)) * right
        lower = at(bottom, left) + (at(bottom, end) - at(bottom, left)) * right
        found = upper + (lower - upper) * down
    inside = (y_inside[:, :, None] & x_inside[:, None, :])[..., None]
    return jnp.where(inside, found, float(extrapolation_value)).astype(np.float32)


def suppressed(boxes: Any, scores: Any, most: int, iou_threshold: float, score_threshold: float) -> Any:
    """The numbers of the boxes that overlap none with a higher score too much, the best first."""
    corners = np.asarray(boxes, np.float32)
    top, left = np.minimum(corners[:, 0], corners[:, 2]), np.minimum(corners[:, 1], corners[:, 3])
    bottom, right = np.maximum(corners[:, 0], corners[:, 2]), np.maximum(corners[:, 1], corners[:, 3])
    area = (bottom - top) * (right - left)
    kept: list[int] = []
    for one in np.argsort(-np.asarray(scores, np.float32), kind="stable"):
        if len(kept) >= most or scores[one] <= score_threshold:
            break
        others = np.array(kept, np.int64)
        shared = np.maximum(
            0, np.minimum(bottom[one], bottom[others]) - np.maximum(top[one], top[others])
        ) * np.maximum(0, np.minimum(right[one], right[others]) - np.maximum(left[one], left[others]))
        union = area[one] + area[others] - shared
        share = np.where((area[one] > 0) & (area[others] > 0), shared / np.where(union > 0, union, 1), 0)
        if not (share > iou_threshold).any():
            kept.append(int(one))
    return np.array(kept, np.int32)


@op("", type="SampleDistortedBoundingBox", tensors="image_size bounding_boxes", random=True)
def sampled_box(
    key: Any,
    image_size: Any,
    bounding_boxes: Any,
    min_object_covered: Any,
    aspect_ratio_range: Any,
    area_range: Any,
    max_attempts: Any,
    dtype: Any = float32,  # noqa: ARG001 - of the result
) -> Any:
    """[top, left, height, width] of a part of an image that shows enough of one of the boxes, or of all of it."""
    height, width = image_size[0].astype(np.float32), image_size[1].astype(np.float32)
    boxes = bounding_boxes.reshape(-1, 4)
    count = int(max_attempts)
    keys = jax.random.split(key, 5)
    aspect = jax.random.uniform(keys[0], (count,), minval=aspect_ratio_range[0], maxval=aspect_ratio_range[1])
    least, most = area_range[0] * height * width, area_range[1] * height * width
    low = jnp.round(jnp.sqrt(least / aspect))
    high = jnp.minimum(jnp.minimum(jnp.round(jnp.sqrt(most / aspect)), jnp.floor((width + 0.4999) / aspect)), height)
    low = jnp.minimum(low, high)
    tall = low + jnp.floor(jax.random.uniform(keys[1], (count,)) * (high - low + 1))
    tall = jnp.minimum(tall, high)
    wide = jnp.round(tall * aspect)
    tall = tall + jnp.where(tall * wide < least, 1, 0) - jnp.where(tall * wide > most, 1, 0)
    wide = jnp.round(tall * aspect)
    top = jnp.floor(jax.random.uniform(keys[2], (count,)) * (height - tall + 1))
    left = jnp.floor(jax.random.uniform(keys[3], (count,)) * (width - wide + 1))
    good = (tall * wide >= least) & (tall * wide <= most) & (wide <= width) & (tall <= height) & (tall > 0) & (wide > 0)
    if boxes.shape[0]:
        chosen = boxes[jax.random.randint(keys[4], (count,), 0, boxes.shape[0])] * jnp.stack([height, width] * 2)
        shared = jnp.maximum(0, jnp.minimum(top + tall, chosen[:, 2]) - jnp.maximum(top, chosen[:, 0])) * jnp.maximum(
            0, jnp.minimum(left + wide, chosen[:, 3]) - jnp.maximum(left, chosen[:, 1])
        )
        area = (chosen[:, 2] - chosen[:, 0]) * (chosen[:, 3] - chosen[:, 1])
        good &= shared >= min_object_covered * area
    first = jnp.argmax(good)
    found = jnp.stack([top, left, tall, wide], 1)[first]
    whole = jnp.stack([jnp.zeros_like(height)] * 2 + [height, width])
    return jnp.where(good.any(), found, whole).astype(np.float32)


@op("", type="BoxParts", tensors="found image_size", outputs=3, folds=True)
def box_parts(found: Any, image_size: Any) -> Any:
    """(begin, size, box) of a part of an image; begin and size for `slice`, with all channels."""
    xp = numpy_or_jax(found, image_size)
    kind, rest = image_size.dtype, np.zeros(1, np.float32)
    whole = xp.concatenate([image_size[:2], image_size[:2]]).astype(np.float32)
    corners = xp.concatenate([found[:2], found[:2] + found[2:]]) / whole
    begin, size = xp.concatenate([found[:2], rest]), xp.concatenate([found[2:], rest - 1])
    return begin.astype(kind), size.astype(kind), corners.reshape(1, 1, 4)
