"""`tf.image`: sizes as TensorFlow 2 computes them, patches, boxes, and changes at random."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import numpy_or_jax
from trainband.compat.ops.boxes import suppressed
from trainband.compat.ops.dtypes import array_of
from trainband.compat.tf2.eager.execute import TENSORS, compute, convert
from trainband.compat.tf2.eager.seeds import key_of, of_operation
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.operations.defining import known, operation

_METHODS = {
    "bilinear": "linear", "nearest": "nearest", "bicubic": "cubic", "lanczos3": "lanczos3", "lanczos5": "lanczos5",
    "area": "area", "gaussian": "gaussian", "mitchellcubic": "mitchellcubic",
}  # fmt: skip


class ResizeMethod:
    """How pictures are resized."""

    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    AREA = "area"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    GAUSSIAN = "gaussian"
    MITCHELLCUBIC = "mitchellcubic"


_resize_area, _resize_bicubic = known("tf.image.resize_area"), known("tf.image.resize_bicubic")
_pad_box, _crop_box = known("tf.image.pad_to_bounding_box"), known("tf.image.crop_to_bounding_box")
_brightness, _contrast = known("tf.image.adjust_brightness"), known("tf.image.adjust_contrast")
_hue, _saturation = known("tf.image.adjust_hue"), known("tf.image.adjust_saturation")
_crop_and_resize, _left_right = known("tf.image.crop_and_resize"), known("tf.image.flip_left_right")
_up_down, _patches = known("tf.image.flip_up_down"), known("tf.extract_image_patches")
_draw = known("tf.image.draw_bounding_boxes")


def resize(
    images: Any,
    size: Any,
    method: Any = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
) -> Tensor:
    """Pictures of another size, by the centres of pixels.

    Raises:
      ValueError: there is no such method, or the shape is not that of pictures.
    """
    del name
    tensor = convert(images)
    title = _METHODS.get(getattr(method, "value", method) if isinstance(method, str) else "", "")
    if tensor.ndim not in (3, 4):
        raise ValueError("'images' must have either 3 or 4 dimensions.")
    if not title:
        raise ValueError(f"Resize method is not implemented: {method}")
    height, width = (int(one) for one in np.asarray(TENSORS.known(size, "resize: size") if TENSORS.is_tensor(size) else
                                                   [int(convert(one)) for one in size]))  # fmt: skip
    before = tensor.aval[0][-3:-1]
    if preserve_aspect_ratio:
        scale = min(height / before[0], width / before[1])
        height, width = (max(1, round(one * scale)) for one in before)
    if title == "area" or (title == "cubic" and not antialias):
        several = tensor if tensor.ndim == 4 else tensor[None]
        if title == "area":
            found: Tensor = _resize_area(several, [height, width])
        else:
            found = _resize_bicubic(several, [height, width], half_pixel_centers=True)
        return found if tensor.ndim == 4 else found[0]
    found = _resized(tensor, height, width, title, bool(antialias))
    return found  # noqa: RET504 - which gives it its type


@operation("images", folds=True)
def _resized(images: Any, height: int, width: int, method: str, antialias: bool) -> Any:
    xp = numpy_or_jax(images)
    if images.shape[-3:-1] == (height, width):
        return images if method == "nearest" else images.astype(np.float32)
    if method == "nearest":
        rows, columns = (
            np.minimum(np.floor((np.arange(new, dtype=np.float32) + 0.5) * np.float32(old / new)), old - 1).astype(int)
            for new, old in zip((height, width), images.shape[-3:-1], strict=True)
        )
        return xp.take(xp.take(images, rows, -3), columns, -2)
    floats = images.astype(np.float32)
    for axis, new in ((-3, height), (-2, width)):
        weights = _weights(floats.shape[axis], new, method, antialias)
        floats = xp.moveaxis(xp.tensordot(floats, weights, [[axis], [0]]), -1, axis)
    return floats


def _weights(old: int, new: int, method: str, antialias: bool) -> Any:
    """[old, new]: how much each pixel counts for each new one."""
    radius, kernel = _KERNELS[method]
    scale = old / new
    width = max(scale, 1.0) if antialias else 1.0
    places = (np.arange(new) + 0.5) * scale
    apart = (np.arange(old)[:, None] + 0.5 - places) / width
    weights = np.where(np.abs(apart) < radius + 1e-9, kernel(apart), 0.0)
    total = weights.sum(0, keepdims=True)
    return np.where(total > 1e-6, weights / np.where(total == 0, 1, total), 0).astype(np.float32)


def _cubic(x: Any, a: float) -> Any:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _mitchell(x: Any) -> Any:
    x = np.abs(x)
    near = (7 * x**3 - 12 * x**2 + 16 / 3) / 6
    far = (-7 / 3 * x**3 + 12 * x**2 - 20 * x + 32 / 3) / 6
    return np.where(x < 1, near, np.where(x < 2, far, 0))


_KERNELS: dict[str, tuple[float, Any]] = {
    "linear": (1.0, lambda x: np.maximum(0, 1 - np.abs(x))),
    "cubic": (2.0, lambda x: _cubic(x, -0.5)),
    "lanczos3": (3.0, lambda x: np.sinc(x) * np.sinc(x / 3)),
    "lanczos5": (5.0, lambda x: np.sinc(x) * np.sinc(x / 5)),
    "gaussian": (1.5, lambda x: np.exp(-0.5 * (x / 0.5) ** 2)),
    "mitchellcubic": (2.0, _mitchell),
}
"""How far a pixel reaches, and how much it counts at a distance."""


def resize_with_pad(
    image: Any, target_height: int, target_width: int, method: Any = "bilinear", antialias: bool = False
) -> Tensor:
    """Pictures of another size with the same proportions, with black around them."""
    tensor = convert(image)
    height, width = tensor.aval[0][-3:-1]
    ratio = max(width / target_width, height / target_height)
    inner = int(height / ratio), int(width / ratio)
    top, left = (max(0, int((size - ratio_size / ratio) / 2)) for size, ratio_size in
                 ((target_height, height), (target_width, width)))  # fmt: skip
    found: Tensor = _pad_box(resize(tensor, inner, method, antialias=antialias), top, left, target_height, target_width)
    return found


def extract_patches(images: Any, sizes: Any, strides: Any, rates: Any, padding: Any, name: str | None = None) -> Tensor:
    """Patches of pictures, as the last axis."""
    del name
    found: Tensor = _patches(images, sizes, strides, rates, padding)
    return found


def crop_and_resize(
    image: Any,
    boxes: Any,
    box_indices: Any,
    crop_size: Any,
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Parts of pictures, each of one size."""
    del name
    found: Tensor = _crop_and_resize(image, boxes, box_indices, crop_size, method, extrapolation_value)
    return found


def draw_bounding_boxes(images: Any, boxes: Any, colors: Any, name: str | None = None) -> Tensor:
    """Pictures with boxes in colours."""
    del name
    found: Tensor = _draw(images, boxes, colors)
    return found


def _between(low: Any, high: Any, source: Tensor) -> Tensor:
    return compute(
        ("between", float(low), float(high)),
        lambda words: (jax.random.uniform(key_of(words), (), np.float32, low, high),),
        [source],
        flat=True,
    )[0]


def _stateless(seed: Any) -> Tensor:
    words = np.asarray(convert(seed).numpy()).astype(np.int64)
    return Tensor(np.array([*(words % 2**32), 0], np.uint32))


def _checked(low: Any, high: Any) -> None:
    if high <= low:
        raise ValueError("upper must be > lower.")
    if low < 0:
        raise ValueError("lower must be non-negative.")


def random_brightness(image: Any, max_delta: float, seed: int | None = None) -> Tensor:
    """Pictures brighter or darker by a random number."""
    return _brightened(image, max_delta, of_operation(seed))


def stateless_random_brightness(image: Any, max_delta: float, seed: Any) -> Tensor:
    """Pictures brighter or darker by a random number that a seed determines."""
    return _brightened(image, max_delta, _stateless(seed))


def _brightened(image: Any, most: float, source: Tensor) -> Tensor:
    if most < 0:
        raise ValueError("max_delta must be non-negative.")
    found: Tensor = _brightness(image, _between(-most, most, source))
    return found


def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """Pictures of more or less contrast."""
    _checked(lower, upper)
    found: Tensor = _contrast(image, _between(lower, upper, of_operation(seed)))
    return found


def stateless_random_contrast(image: Any, lower: float, upper: float, seed: Any) -> Tensor:
    """Pictures of more or less contrast, as a seed determines."""
    _checked(lower, upper)
    found: Tensor = _contrast(image, _between(lower, upper, _stateless(seed)))
    return found


def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """Pictures of more or less colour."""
    _checked(lower, upper)
    found: Tensor = _saturation(image, _between(lower, upper, of_operation(seed)))
    return found


def stateless_random_saturation(image: Any, lower: float, upper: float, seed: Any = None) -> Tensor:
    """Pictures of more or less colour, as a seed determines."""
    _checked(lower, upper)
    found: Tensor = _saturation(image, _between(lower, upper, _stateless(seed)))
    return found


def random_hue(image: Any, max_delta: float, seed: int | None = None) -> Tensor:
    """Pictures of other colours."""
    found: Tensor = _hue(image, _between(-max_delta, max_delta, of_operation(seed)))
    return found


def stateless_random_hue(image: Any, max_delta: float, seed: Any) -> Tensor:
    """Pictures of other colours, as a seed determines."""
    found: Tensor = _hue(image, _between(-max_delta, max_delta, _stateless(seed)))
    return found


def _flipped(image: Any, source: Tensor, axis: int) -> Tensor:
    tensor = convert(image)
    if tensor.ndim not in (3, 4):
        raise ValueError("'image' (shape) must have either 3 or 4 dimensions.")

    def call(words: Any, pictures: Any) -> Any:
        many = pictures if pictures.ndim == 4 else pictures[None]
        draw = jax.random.uniform(key_of(words), (many.shape[0], 1, 1, 1)) < 0.5
        found = jnp.where(draw, jnp.flip(many, axis + 1), many)
        return (found if pictures.ndim == 4 else found[0],)

    return compute(("flipped", axis), call, [source, tensor])[0]


def random_flip_left_right(image: Any, seed: int | None = None) -> Tensor:
    """Pictures, half of them mirrored."""
    return _flipped(image, of_operation(seed), 1)


def random_flip_up_down(image: Any, seed: int | None = None) -> Tensor:
    """Pictures, half of them upside down."""
    return _flipped(image, of_operation(seed), 0)


def stateless_random_flip_left_right(image: Any, seed: Any) -> Tensor:
    """Pictures, half of them mirrored, as a seed determines."""
    return _flipped(image, _stateless(seed), 1)


def stateless_random_flip_up_down(image: Any, seed: Any) -> Tensor:
    """Pictures, half of them upside down, as a seed determines."""
    return _flipped(image, _stateless(seed), 0)


def _cropped(value: Any, size: Any, source: Tensor) -> Tensor:
    tensor = convert(value)
    sizes = [int(convert(one)) for one in size] if isinstance(size, list | tuple) else list(
        map(int, np.asarray(convert(size).numpy()))
    )  # fmt: skip
    whole = tensor.aval[0]
    sizes = [have if wanted == -1 else wanted for have, wanted in zip(whole, sizes, strict=True)]
    if any(wanted > have for have, wanted in zip(whole, sizes, strict=True)):
        raise ValueError(f"Need value.shape >= size, got {tuple(whole)} and {tuple(sizes)}")

    def call(words: Any, array: Any) -> Any:
        rest = np.asarray([have - wanted + 1 for have, wanted in zip(whole, sizes, strict=True)], np.int32)
        begin = jax.random.randint(key_of(words), (len(rest),), 0, rest)
        return (jax.lax.dynamic_slice(array, list(begin), sizes),)

    return compute(("cropped", tuple(whole), tuple(sizes)), call, [source, tensor])[0]


def random_crop(value: Any, size: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """A part of an array from a random place."""
    del name
    return _cropped(value, size, of_operation(seed))


def stateless_random_crop(value: Any, size: Any, seed: Any, name: str | None = None) -> Tensor:
    """A part of an array from a place that a seed determines."""
    del name
    return _cropped(value, size, _stateless(seed))


def non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: float = 0.5,
    score_threshold: float = float("-inf"),
    name: str | None = None,
) -> Tensor:
    """The numbers of boxes that do not overlap, those of the highest scores first."""
    del name
    found = suppressed(
        np.asarray(TENSORS.known(boxes, "non_max_suppression: boxes")),
        np.asarray(TENSORS.known(scores, "non_max_suppression: scores")),
        int(convert(max_output_size)),
        float(convert(iou_threshold)),
        float(convert(score_threshold)),
    )
    return Tensor(array_of(np.asarray(found, np.int32), None))
