"""Operations on images, on whose values TensorFlow and trainband must agree. It needs NumPy only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_random = np.random.RandomState(3)
IMAGE = _random.rand(5, 7, 3).astype(np.float32)
IMAGES = _random.rand(2, 4, 5, 3).astype(np.float32)
BYTES = _random.randint(0, 256, (6, 5, 3)).astype(np.uint8)
LARGE = _random.rand(2, 13, 14, 3).astype(np.float32)
BOXES = np.array([[0.1, 0.2, 0.7, 0.9], [0.0, 0.0, 1.0, 1.0], [-0.2, 0.3, 0.5, 1.3]], np.float32)
GRAY = np.full((3, 3, 3), 7, np.uint8)

TABLE: dict[str, Callable[[Any], Any]] = {
    "bilinear": lambda tf: tf.image.resize_images(IMAGE, [9, 4]),
    "bilinear_corners": lambda tf: tf.image.resize_images(IMAGES, [7, 3], align_corners=True),
    "bilinear_bytes": lambda tf: tf.image.resize_bilinear(BYTES[None], [3, 11]),
    "bilinear_half": lambda tf: tf.image.resize_bilinear(IMAGES, [7, 3], half_pixel_centers=True),
    "nearest": lambda tf: tf.image.resize_images(BYTES, [9, 4], tf.image.ResizeMethod.NEAREST_NEIGHBOR),
    "nearest_corners": lambda tf: tf.image.resize_nearest_neighbor(BYTES[None], [4, 9], align_corners=True),
    "bicubic": lambda tf: tf.image.resize_images(IMAGE, [8, 11], tf.image.ResizeMethod.BICUBIC),
    "bicubic_corners": lambda tf: tf.image.resize_bicubic(IMAGES, [3, 9], align_corners=True),
    "bicubic_half": lambda tf: tf.image.resize_bicubic(IMAGES, [3, 9], half_pixel_centers=True),
    "area": lambda tf: tf.image.resize_images(IMAGE, [3, 4], tf.image.ResizeMethod.AREA),
    "area_larger": lambda tf: tf.image.resize_area(IMAGES, [6, 8]),
    "same_size": lambda tf: tf.image.resize_images(BYTES, [6, 5]),
    "aspect": lambda tf: tf.image.resize_images(IMAGE, [10, 10], preserve_aspect_ratio=True),
    "crop_or_pad": lambda tf: tf.image.resize_image_with_crop_or_pad(IMAGE, 8, 4),
    "crop_or_pad_odd": lambda tf: tf.image.resize_image_with_crop_or_pad(IMAGES, 3, 8),
    "central_crop": lambda tf: tf.image.central_crop(IMAGE, 0.5),
    "crop": lambda tf: tf.image.crop_to_bounding_box(IMAGE, 1, 2, 3, 4),
    "pad": lambda tf: tf.image.pad_to_bounding_box(IMAGES, 1, 2, 7, 8),
    "flips": lambda tf: tf.image.flip_left_right(IMAGE) + 2 * tf.image.flip_up_down(IMAGE),
    "transpose": lambda tf: tf.image.transpose_image(IMAGE),
    "rot90": lambda tf: tf.image.rot90(IMAGE, 3),
    "brightness": lambda tf: tf.image.adjust_brightness(IMAGE, 0.3),
    "brightness_bytes": lambda tf: tf.image.adjust_brightness(BYTES, -0.3),
    "contrast": lambda tf: tf.image.adjust_contrast(IMAGES, 1.7),
    "contrast_bytes": lambda tf: tf.image.adjust_contrast(BYTES, 1.7),
    "hue": lambda tf: tf.image.adjust_hue(IMAGE, 0.3),
    "hue_bytes": lambda tf: tf.image.adjust_hue(BYTES, -0.2),
    "saturation": lambda tf: tf.image.adjust_saturation(IMAGE, 1.8),
    "gamma": lambda tf: tf.image.adjust_gamma(IMAGE, 0.7, 1.2),
    "standardization": lambda tf: tf.image.per_image_standardization(IMAGE),
    "standardization_bytes": lambda tf: tf.image.per_image_standardization(BYTES),
    "standardization_uniform": lambda tf: tf.image.per_image_standardization(GRAY),
    "to_gray": lambda tf: tf.image.rgb_to_grayscale(IMAGE),
    "to_gray_bytes": lambda tf: tf.image.rgb_to_grayscale(BYTES),
    "of_gray": lambda tf: tf.image.grayscale_to_rgb(tf.constant(IMAGE[..., :1])),
    "hsv": lambda tf: tf.image.rgb_to_hsv(np.concatenate([IMAGE, np.full((1, 7, 3), 0.7, np.float32)])),
    "of_hsv": lambda tf: tf.image.hsv_to_rgb(IMAGE),
    "yuv": lambda tf: tf.image.rgb_to_yuv(IMAGE) + tf.image.yiq_to_rgb(IMAGE),
    "to_float": lambda tf: tf.image.convert_image_dtype(BYTES, tf.float32),
    "to_bytes": lambda tf: tf.image.convert_image_dtype(IMAGE * 1.2, tf.uint8, saturate=True),
    "to_int16": lambda tf: tf.image.convert_image_dtype(BYTES, tf.int16),
    "of_int16": lambda tf: tf.image.convert_image_dtype(BYTES.astype(np.int16) * 100, tf.uint8),
    "saturate_cast": lambda tf: tf.saturate_cast(np.array([-3.0, 7.9, 300.0], np.float32), tf.uint8),
    "total_variation": lambda tf: tf.image.total_variation(tf.constant(IMAGES)),
    "psnr": lambda tf: tf.image.psnr(tf.constant(IMAGES), tf.constant(IMAGES[::-1]), 1.0),
    "ssim": lambda tf: tf.image.ssim(tf.constant(LARGE), tf.constant(LARGE[::-1]), 1.0),
    "draw_boxes": lambda tf: tf.image.draw_bounding_boxes(LARGE, np.stack([BOXES, BOXES[::-1]])),
    "crop_and_resize": lambda tf: tf.image.crop_and_resize(IMAGES, BOXES, [0, 1, 1], [3, 4], extrapolation_value=-1),
    "crop_and_resize_1": lambda tf: tf.image.crop_and_resize(IMAGES, BOXES, [0, 1, 1], [1, 2], method="nearest"),
    "suppression": lambda tf: tf.image.non_max_suppression(
        np.concatenate([BOXES, BOXES + 0.05, BOXES + 0.3]), [0.5, 0.9, 0.3, 0.6, 0.1, 0.35, 0.2, 0.2, 0.8], 4, 0.6
    ),
}


def compute(tf: Any, names: Any = None) -> dict[str, Any]:
    """The values, by name."""
    found = {name: TABLE[name](tf) for name in names or TABLE}
    with tf.Session() as session:
        values: dict[str, Any] = session.run(found)
    return values
