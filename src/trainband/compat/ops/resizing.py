"""Images in another size, as TensorFlow 1's kernels compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.compat.ops.arrays import ArgumentError, numpy_or_jax, sizes_of
from trainband.compat.ops.table import op

BILINEAR, NEAREST, BICUBIC, AREA = range(4)
_TABLE_SIZE = 1024
"""TensorFlow looks the weights of a bicubic filter up in a table."""

Taps = tuple[NDArray[np.int64], NDArray[np.float32]]
"""[out, k]: from which places a new one is computed, and with what weights."""


class ResizeMethod:
    """How images are resized."""

    BILINEAR, NEAREST_NEIGHBOR, BICUBIC, AREA = BILINEAR, NEAREST, BICUBIC, AREA


def _scale(before: int, after: int, align_corners: bool) -> np.float32:
    if align_corners and after > 1:
        return np.float32((before - 1) / (after - 1))
    return np.float32(before / after)


def _places(before: int, after: int, align_corners: bool, half_pixel: bool) -> NDArray[np.float32]:
    scale = _scale(before, after, align_corners)
    numbers = np.arange(after, dtype=np.float32)
    return (numbers + np.float32(0.5)) * scale - np.float32(0.5) if half_pixel else numbers * scale


def _bilinear(before: int, after: int, align_corners: bool, half_pixel: bool) -> Taps:
    places = _places(before, after, align_corners, half_pixel)
    floor = np.floor(places)
    upper = (places - floor).astype(np.float32)
    lower = np.clip(np.stack([floor, floor + 1], 1).astype(np.int64), 0, before - 1)
    return lower, np.stack([1 - upper, upper], 1)


def _nearest(before: int, after: int, align_corners: bool, half_pixel: bool) -> Taps:
    scale = _scale(before, after, align_corners)
    places = (np.arange(after, dtype=np.float32) + np.float32(0.5 if half_pixel else 0)) * scale
    # Halves are rounded away from zero.
    whole = np.floor(places + np.float32(0.5)) if align_corners else np.floor(places)
    return np.clip(whole.astype(np.int64), 0, before - 1)[:, None], np.ones((after, 1), np.float32)


def _cubic(distance: NDArray[Any], a: float) -> NDArray[Any]:
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    found: NDArray[Any] = np.where(distance <= 1, near, far)
    return found


def _bicubic(before: int, after: int, align_corners: bool, half_pixel: bool) -> Taps:
    places = _places(before, after, align_corners, half_pixel)
    floor = np.floor(places)
    part = np.rint((places - floor) * _TABLE_SIZE) / _TABLE_SIZE
    a = -0.5 if half_pixel else -0.75
    weights = np.stack([_cubic(np.abs(part - k), a) for k in (-1, 0, 1, 2)], 1)
    wanted = floor[:, None] + np.arange(-1, 3)
    inside = np.clip(wanted, 0, before - 1)
    if half_pixel:  # what lies outside does not count
        weights = np.where(wanted == inside, weights, 0)
        total = weights.sum(1, keepdims=True)
        weights = np.where(np.abs(total) >= 1000 * np.finfo(np.float32).tiny, weights / total, weights)
    return inside.astype(np.int64), weights.astype(np.float32)


def _area(before: int, after: int, align_corners: bool, half_pixel: bool) -> Taps:  # noqa: ARG001
    scale = float(_scale(before, after, align_corners))
    begin = np.arange(after)[:, None] * scale
    end = begin + scale
    most = int(np.ceil(scale)) + 1
    wanted = np.floor(begin) + np.arange(most)
    covered = np.clip(np.minimum(wanted + 1, end) - np.maximum(wanted, begin), 0, None)
    return np.clip(wanted, 0, before - 1).astype(np.int64), (covered / scale).astype(np.float32)


_TAPS = {BILINEAR: _bilinear, NEAREST: _nearest, BICUBIC: _bicubic, AREA: _area}


def resized(images: Any, size: Any, method: int, align_corners: bool = False, half_pixel_centers: bool = False) -> Any:
    """[..., height, width, channels] in another height and width; float32 unless the nearest pixels are taken.

    Raises:
      ValueError: these are no images, there is no such method, or the size is not two numbers.
    """
    sizes = sizes_of(size, "the size of images")
    if len(images.shape) not in (3, 4):
        raise ArgumentError("'images' must have either 3 or 4 dimensions.")
    if len(sizes) != 2:
        raise ArgumentError("'size' must be a 1-D Tensor of 2 elements: new_height, new_width")
    if method not in _TAPS:
        raise ArgumentError("Resize method is not implemented.")
    if align_corners and half_pixel_centers:
        raise ArgumentError("If half_pixel_centers is True, align_corners must be False.")
    xp = numpy_or_jax(images)
    found = images if method == NEAREST else images.astype(np.float32)
    rank = len(images.shape)
    for axis, after in ((rank - 2, sizes[1]), (rank - 3, sizes[0])):
        places, weights = _TAPS[method](found.shape[axis], after, align_corners, half_pixel_centers)
        shape = (-1, *[1] * (rank - 1 - axis))
        parts = [xp.take(found, places[:, k], axis=axis) for k in range(places.shape[1])]
        if method == NEAREST:
            found = parts[0]
        else:
            found = sum(part * weights[:, k].reshape(shape) for k, part in enumerate(parts))
    return found


def _has_size(images: Any, size: Any, **_: Any) -> bool:
    """Whether images are known to have the size already."""
    shape = images.shape
    if shape is None or size.value is None or len(shape) < 3:
        return False
    return bool([shape[-3], shape[-2]] == np.ravel(size.value).tolist())


def _number(method: Any) -> int:
    names = {"bilinear": BILINEAR, "nearest": NEAREST, "bicubic": BICUBIC, "area": AREA}
    return names[method] if isinstance(method, str) and method in names else int(method)


@op(
    v1_names="tf.image.resize_images tf.image.resize",
    type="resize",
    tensors="images size",
    shapes="size",
    folds=True,
    unchanged=_has_size,
    v1="images size method align_corners preserve_aspect_ratio name",
)
def resize_images(
    images: Any, size: Any, method: Any = BILINEAR, align_corners: bool = False, preserve_aspect_ratio: bool = False
) -> Any:
    """Images in another size. With `preserve_aspect_ratio`, as large as fits into it."""
    sizes = sizes_of(size, "the size of images")
    if preserve_aspect_ratio:
        before = images.shape[-3:-1]
        factor = min(np.float32(sizes[0] / before[0]), np.float32(sizes[1] / before[1]))
        sizes = tuple(int(np.rint(factor * one)) for one in before)
    if tuple(images.shape[-3:-1]) == sizes:
        return images if _number(method) == NEAREST else images.astype(np.float32)
    return resized(images, np.array(sizes), _number(method), align_corners)


def _single(name: str, method: int) -> Any:
    def compute(images: Any, size: Any, align_corners: bool = False, half_pixel_centers: bool = False) -> Any:
        return resized(images, size, method, align_corners, half_pixel_centers)

    compute.__name__ = f"resize_{name}"
    compute.__doc__ = f"Images in another size, by the method `{name}`."
    return op(
        v1_names=f"tf.image.resize_{name}",
        type="Resize" + "".join(part.title() for part in name.split("_")),
        tensors="images size",
        shapes="size",
        folds=True,
        v1="images size align_corners name half_pixel_centers",
    )(compute)


resize_bilinear = _single("bilinear", BILINEAR)
resize_nearest_neighbor = _single("nearest_neighbor", NEAREST)
resize_bicubic = _single("bicubic", BICUBIC)
resize_area = _single("area", AREA)
