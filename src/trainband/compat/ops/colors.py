"""The colors of images: dtypes, brightness, contrast, hue, saturation, and color spaces."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops.arrays import ArgumentError, is_floating, is_integer, numpy_or_jax
from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.ops.math import cast, square_root
from trainband.compat.ops.table import op


@op(
    v1_names="tf.image.convert_image_dtype",
    type="convert_image",
    tensors="image",
    folds=True,
    v1="image dtype saturate name",
)
def convert_image_dtype(image: Any, dtype: Any, saturate: bool = False) -> Any:
    """An image of another dtype, scaled: whole numbers use their whole range, others go from 0 to 1."""
    kind = as_dtype(dtype).numpy
    if image.dtype == kind:
        return image
    if is_integer(image) and np.issubdtype(kind, np.integer):
        before, after = np.iinfo(image.dtype).max, np.iinfo(kind).max
        if before > after:
            return cast_within(image // ((before + 1) // (after + 1)), kind, saturate)
        return cast_within(image, kind, saturate) * np.array((after + 1) // (before + 1), kind)
    if is_floating(image) and np.issubdtype(kind, np.integer):
        scaled = image * np.array(np.iinfo(kind).max + 0.5, image.dtype)
        return cast_within(scaled, kind, saturate)
    if is_integer(image):
        return image.astype(kind) * np.array(1.0 / np.iinfo(image.dtype).max, kind)
    return image.astype(kind)


def cast_within(value: Any, kind: Any, saturate: bool) -> Any:
    """A value of another dtype; with `saturate`, the largest and smallest number instead of an overflow."""
    return saturate_cast(value, kind) if saturate else cast(value, kind)


@op("tf.saturate_cast", v1_names="tf.dtypes.saturate_cast", type="saturate_cast", tensors="value", folds=True)
def saturate_cast(value: Any, dtype: Any) -> Any:
    """Another dtype, with its largest and smallest number instead of an overflow."""
    kind, own = as_dtype(dtype), as_dtype(value.dtype)
    if not (kind.is_floating or kind.is_integer) or not (own.is_floating or own.is_integer):
        return cast(value, kind)
    limits = zip(_limits(kind), _limits(own), strict=True)
    low, high = (_within(min(pair, key=abs), own) for pair in limits)
    return cast(numpy_or_jax(value).clip(value, low, high), kind)


def _limits(dtype: DType) -> tuple[int | float, int | float]:
    """The least and the largest value as Python's numbers, which compare exactly."""
    number = float if dtype.is_floating else int
    return number(dtype.min), number(dtype.max)


def _within(limit: float, dtype: DType) -> Any:
    """The number of a dtype that is nearest to a limit, and not beyond it: float32 has no 2**31 - 1."""
    if not dtype.is_floating:
        return np.array(limit, dtype.numpy)
    found = np.array(float(limit), dtype.numpy)
    return np.nextafter(found, found.dtype.type(0)) if abs(float(found)) > abs(limit) else found


def _in_floats(image: Any) -> Any:
    return image if is_floating(image) else convert_image_dtype(image, "float32")


def _back(image: Any, kind: Any) -> Any:
    return convert_image_dtype(image, kind, saturate=True)


@op(v1_names="tf.image.adjust_brightness", type="adjust_brightness", tensors="image delta", folds=True,
    like={"delta": "float32"}, v1="image delta")  # fmt: skip
def adjust_brightness(image: Any, delta: Any) -> Any:
    """Adds `delta`, between -1 and 1, to an image whose numbers go from 0 to 1."""
    whole = _in_floats(image)
    return _back(whole + delta.astype(whole.dtype), image.dtype)


@op(v1_names="tf.image.adjust_contrast", type="adjust_contrast", tensors="images contrast_factor", folds=True,
    like={"contrast_factor": "float32"}, v1="images contrast_factor")  # fmt: skip
def adjust_contrast(images: Any, contrast_factor: Any) -> Any:
    """Scales each channel's distance from its mean over the image."""
    if len(images.shape) < 3:
        raise ArgumentError("images must be at least 3-D.")
    whole = _in_floats(images)
    mean = whole.mean((-3, -2), keepdims=True)
    return _back(((whole - mean) * contrast_factor.astype(whole.dtype) + mean).astype(whole.dtype), images.dtype)


@op(v1_names="tf.image.adjust_gamma", type="adjust_gamma", tensors="image gamma gain", folds=True,
    like={"gamma": "float32", "gain": "float32"}, v1="image gamma gain")  # fmt: skip
def adjust_gamma(image: Any, gamma: Any = 1, gain: Any = 1) -> Any:
    """Takes each number to the power `gamma`, and scales by `gain`."""
    if isinstance(gamma, np.ndarray | np.generic | float | int) and np.any(np.less(gamma, 0)):
        raise ArgumentError("Gamma should be a non-negative real number.")
    whole = _in_floats(image)
    return _back((gain * numpy_or_jax(whole, gamma).power(whole, gamma)).astype(whole.dtype), image.dtype)


@op(v1_names="tf.image.adjust_hue", type="adjust_hue", tensors="image delta", folds=True,
    like={"delta": "float32"}, v1="image delta name")  # fmt: skip
def adjust_hue(image: Any, delta: Any) -> Any:
    """Turns the hue of an RGB image by `delta`, where 1 is the whole circle."""
    hue, saturation, value = _channels(rgb_to_hsv(_in_floats(image)))
    xp = numpy_or_jax(image, delta)
    turned = xp.mod(hue + delta.astype(hue.dtype), 1)
    return _back(hsv_to_rgb(xp.concatenate([turned, saturation, value], -1)), image.dtype)


@op(v1_names="tf.image.adjust_saturation", type="adjust_saturation", tensors="image saturation_factor", folds=True,
    like={"saturation_factor": "float32"}, v1="image saturation_factor name")  # fmt: skip
def adjust_saturation(image: Any, saturation_factor: Any) -> Any:
    """Scales the saturation of an RGB image."""
    hue, saturation, value = _channels(rgb_to_hsv(_in_floats(image)))
    xp = numpy_or_jax(image, saturation_factor)
    scaled = xp.clip(saturation * saturation_factor.astype(saturation.dtype), 0, 1)
    return _back(hsv_to_rgb(xp.concatenate([hue, scaled, value], -1)), image.dtype)


def _channels(image: Any) -> tuple[Any, Any, Any]:
    if image.shape[-1] != 3:
        raise ArgumentError(f"input must have 3 channels but instead has {image.shape[-1]}.")
    return image[..., 0:1], image[..., 1:2], image[..., 2:3]


@op("tf.image.rgb_to_hsv", type="RGBToHSV", tensors="images", folds=True)
def rgb_to_hsv(images: Any) -> Any:
    """Hue, saturation and value of RGB, all from 0 to 1."""
    red, green, blue = _channels(images)
    xp = numpy_or_jax(images)
    value = images.max(-1, keepdims=True)
    spread = value - images.min(-1, keepdims=True)
    saturation = xp.where(value > 0, spread / xp.where(value > 0, value, 1), 0)
    norm = 1 / (6 * xp.where(spread > 0, spread, 1))
    hue = xp.where(
        red == value,
        norm * (green - blue),
        xp.where(green == value, norm * (blue - red) + 2 / 6, norm * (red - green) + 4 / 6),
    )
    hue = xp.where(spread > 0, hue, 0)
    hue = xp.where(hue < 0, hue + 1, hue)
    return xp.concatenate([hue, saturation, value], -1).astype(images.dtype)


@op("tf.image.hsv_to_rgb", type="HSVToRGB", tensors="images", folds=True)
def hsv_to_rgb(images: Any) -> Any:
    """RGB of hue, saturation and value."""
    hue, saturation, value = _channels(images)
    xp = numpy_or_jax(images)
    six = hue * 6
    pure = xp.concatenate([xp.abs(six - 3) - 1, 2 - xp.abs(six - 2), 2 - xp.abs(six - 4)], -1)
    return (((xp.clip(pure, 0, 1) - 1) * saturation + 1) * value).astype(images.dtype)


@op("tf.image.rgb_to_grayscale", type="rgb_to_grayscale", tensors="images", folds=True)
def rgb_to_grayscale(images: Any) -> Any:
    """The brightness of an RGB image, as one channel."""
    whole = _in_floats(images)
    gray = (whole * np.array([0.2989, 0.5870, 0.1140], whole.dtype)).sum(-1, keepdims=True)
    return convert_image_dtype(gray.astype(whole.dtype), images.dtype)


@op("tf.image.grayscale_to_rgb", type="grayscale_to_rgb", tensors="images", folds=True)
def grayscale_to_rgb(images: Any) -> Any:
    """One channel three times."""
    return numpy_or_jax(images).concatenate([images] * 3, -1)


_TO_YIQ = [[0.299, 0.59590059, 0.2115], [0.587, -0.27455667, -0.52273617], [0.114, -0.32134392, 0.31119955]]
_TO_YUV = [[0.299, -0.14714119, 0.61497538], [0.587, -0.28886916, -0.51496512], [0.114, 0.43601035, -0.10001026]]
_OF_YIQ = [[1, 1, 1], [0.95598634, -0.27201283, -1.10674021], [0.6208248, -0.64720424, 1.70423049]]
_OF_YUV = [[1, 1, 1], [0, -0.394642334, 2.03206185], [1.13988303, -0.58062185, 0]]


def _linear(name: str, matrix: Any) -> Any:
    def compute(images: Any) -> Any:
        return numpy_or_jax(images).matmul(images, np.array(matrix, images.dtype))

    compute.__name__ = name
    compute.__doc__ = f"The color space of an image changed: {name.replace('_', ' ')}."
    return op(f"tf.image.{name}", type=name, tensors="images", folds=True)(compute)


rgb_to_yiq = _linear("rgb_to_yiq", _TO_YIQ)
rgb_to_yuv = _linear("rgb_to_yuv", _TO_YUV)
yiq_to_rgb = _linear("yiq_to_rgb", _OF_YIQ)
yuv_to_rgb = _linear("yuv_to_rgb", _OF_YUV)


@op(v1_names="tf.image.per_image_standardization tf.image.per_image_whitening", type="per_image_standardization",
    tensors="image", folds=True, v1="image")  # fmt: skip
def per_image_standardization(image: Any) -> Any:
    """An image with mean 0 and variance 1, as far as it is not uniform."""
    whole = image.astype(np.float32)
    xp = numpy_or_jax(whole)
    count = int(np.prod(whole.shape[-3:]))
    mean = whole.mean((-3, -2, -1), keepdims=True)
    variance = ((whole - mean) ** 2).mean((-3, -2, -1), keepdims=True)
    deviation = xp.sqrt(variance) if xp is np else square_root(variance)  # whose derivative at 0 may be left out
    least = np.array(1.0 / np.sqrt(count), whole.dtype)
    return ((whole - mean) / xp.maximum(deviation, least)).astype(whole.dtype)
