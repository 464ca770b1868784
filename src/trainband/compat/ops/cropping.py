"""Parts of images, images in larger ones, and images turned over."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, is_computed, numpy_or_jax, sizes_of
from trainband.compat.ops.table import op

_WHAT = "the size of an image"


def _checked(image: Any) -> Any:
    if len(image.shape) not in (3, 4):
        raise ArgumentError(f"'image' (shape {tuple(image.shape)}) must be three- or four-dimensional.")
    return image


@op(
    v1_names="tf.image.crop_to_bounding_box",
    type="crop_to_bounding_box",
    tensors="image offset_height offset_width target_height target_width",
    shapes="target_height target_width",
    folds=True,
)
def crop_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Any:
    """The part of an image that begins at an offset."""
    _checked(image)
    size = (*sizes_of(target_height, _WHAT), *sizes_of(target_width, _WHAT))
    return cut(image, (offset_height, offset_width), size)


def cut(image: Any, begin: tuple[Any, Any], size: tuple[int, ...]) -> Any:
    """A part of [..., height, width, channels].

    Raises:
      ValueError: it is not inside.
    """
    height, width = image.shape[-3:-1]
    if not any(map(is_computed, begin)):
        top, left = (int(one) for one in begin)
        for name, first, most, whole in (("width", left, size[1], width), ("height", top, size[0], height)):
            if first < 0:
                raise ArgumentError(f"offset_{name} must be >= 0.")
            if most <= 0:
                raise ArgumentError(f"target_{name} must be > 0.")
            if first + most > whole:  # no ArgumentError: it depends on the image, whose size may not be known yet
                raise ValueError(f"{name} must be >= target + offset.")
        return image[..., top : top + size[0], left : left + size[1], :]
    rank = len(image.shape)
    start = [*[0] * (rank - 3), *begin, 0]
    return jax.lax.dynamic_slice(image, start, (*image.shape[:-3], *size, image.shape[-1]))


@op(
    v1_names="tf.image.pad_to_bounding_box",
    type="pad_to_bounding_box",
    tensors="image offset_height offset_width target_height target_width",
    shapes="offset_height offset_width target_height target_width",
    folds=True,
)
def pad_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Any:
    """An image at an offset in a larger one of zeros."""
    _checked(image)
    top, left, height, width = (
        sizes_of(one, _WHAT)[0] for one in (offset_height, offset_width, target_height, target_width)
    )
    below, right = height - top - image.shape[-3], width - left - image.shape[-2]
    for name, value in (
        ("offset_height must be >= 0", top),
        ("offset_width must be >= 0", left),
        ("width must be <= target - offset", right),
        ("height must be <= target - offset", below),
    ):
        if value < 0:
            raise (ArgumentError if "offset_" in name else ValueError)(f"{name}.")
    edges = [*[(0, 0)] * (len(image.shape) - 3), (top, below), (left, right), (0, 0)]
    return numpy_or_jax(image).pad(image, edges)


@op(
    v1_names="tf.image.resize_image_with_crop_or_pad tf.image.resize_with_crop_or_pad",
    type="resize_image_with_crop_or_pad",
    tensors="image target_height target_width",
    shapes="target_height target_width",
    folds=True,
    v1="image target_height target_width",
)
def resize_image_with_crop_or_pad(image: Any, target_height: Any, target_width: Any) -> Any:
    """An image of this size: its middle where it is larger, zeros around it where it is smaller."""
    _checked(image)
    wanted = (sizes_of(target_height, _WHAT)[0], sizes_of(target_width, _WHAT)[0])
    for name, size in zip(("height", "width"), wanted, strict=True):
        if size <= 0:
            raise ArgumentError(f"target_{name} must be > 0.")
    sizes = image.shape[-3:-1]
    begin = [max(0, (size - want) // 2) for size, want in zip(sizes, wanted, strict=True)]
    middle = cut(image, (begin[0], begin[1]), tuple(min(s, w) for s, w in zip(sizes, wanted, strict=True)))
    before = [max(0, (want - size) // 2) for size, want in zip(sizes, wanted, strict=True)]
    return pad_to_bounding_box(middle, before[0], before[1], wanted[0], wanted[1])


@op(v1_names="tf.image.central_crop", type="central_crop", tensors="image", folds=True, v1="image central_fraction")
def central_crop(image: Any, central_fraction: Any) -> Any:
    """The middle of an image: this part of its height and width."""
    fraction = float(central_fraction)
    if not 0 < fraction <= 1:
        raise ArgumentError("central_fraction must be within (0, 1]")
    _checked(image)
    begin = [int((size - size * fraction) / 2) for size in image.shape[-3:-1]]
    size = tuple(whole - 2 * first for whole, first in zip(image.shape[-3:-1], begin, strict=True))
    return cut(image, (begin[0], begin[1]), size)


@op(v1_names="tf.image.flip_left_right", type="flip_left_right", tensors="image", folds=True, v1="image")
def flip_left_right(image: Any) -> Any:
    """Left and right exchanged."""
    return numpy_or_jax(image).flip(_checked(image), -2)


@op(v1_names="tf.image.flip_up_down", type="flip_up_down", tensors="image", folds=True, v1="image")
def flip_up_down(image: Any) -> Any:
    """Top and bottom exchanged."""
    return numpy_or_jax(image).flip(_checked(image), -3)


@op(
    v1_names="tf.image.transpose tf.image.transpose_image",
    type="transpose_image",
    tensors="image",
    folds=True,
    v1="image name",
)
def transpose_image(image: Any) -> Any:
    """Rows and columns exchanged."""
    return numpy_or_jax(image).swapaxes(_checked(image), -3, -2)


@op(v1_names="tf.image.rot90", type="rot90", tensors="image", folds=True, v1="image k name")
def rot90(image: Any, k: Any = 1) -> Any:
    """Turned by `k` times 90 degrees, counter-clockwise."""
    rank = len(_checked(image).shape)
    return numpy_or_jax(image).rot90(image, int(k) % 4, axes=(rank - 3, rank - 2))


@op("", type="flip_where", tensors="image draw", folds=True)
def flip_where(image: Any, draw: Any, axis: Any) -> Any:
    """Turned over along an axis where the draw is below one half; `draw` has the axes before the image's own."""
    chosen = (draw < 0.5).reshape((*draw.shape, 1, 1, 1))
    xp = numpy_or_jax(image, draw)
    return xp.where(chosen, xp.flip(_checked(image), int(axis)), image)


@op("", type="random_cut", tensors="value draw size", shapes="size", folds=True)
def cut_at_random(value: Any, draw: Any, size: Any) -> Any:
    """A part of an array of this size; the draw, of each axis between 0 and 1, says where."""
    sizes = [whole if one < 0 else one for one, whole in zip(sizes_of(size, "a size"), value.shape, strict=True)]
    rest = np.array(value.shape, np.int64) - np.array(sizes, np.int64)
    if (rest < 0).any():
        raise ArgumentError(f"Need value.shape >= size, got {tuple(value.shape)} and {tuple(sizes)}")
    xp = numpy_or_jax(value, draw)
    begin = xp.minimum((draw * (rest + 1)).astype(np.int64), rest)
    if is_computed(begin) or is_computed(value):
        return jax.lax.dynamic_slice(value, list(begin), sizes)
    return value[tuple(slice(int(b), int(b) + n) for b, n in zip(begin, sizes, strict=True))]
