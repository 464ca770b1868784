"""How much images vary, and how much they differ."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.colors import convert_image_dtype
from trainband.compat.ops.table import op


@op("tf.image.total_variation", type="total_variation", tensors="images")
def total_variation(images: Any) -> Any:
    """The sum of the differences between neighbours, of each image."""
    down = jnp.abs(images[..., 1:, :, :] - images[..., :-1, :, :]).sum((-3, -2, -1), images.dtype)
    right = jnp.abs(images[..., :, 1:, :] - images[..., :, :-1, :]).sum((-3, -2, -1), images.dtype)
    return down + right


@op("tf.image.psnr", type="psnr", tensors="a b")
def psnr(a: Any, b: Any, max_val: Any) -> Any:
    """The ratio between the largest value and the noise, in dB."""
    most = convert_image_dtype(np.asarray(max_val, a.dtype), "float32")
    x, y = convert_image_dtype(a, "float32"), convert_image_dtype(b, "float32")
    error = ((x - y) ** 2).mean((-3, -2, -1))
    return 20 * jnp.log(most) / np.float32(np.log(10)) - np.float32(10 / np.log(10)) * jnp.log(error)


@op("tf.image.ssim", type="ssim", tensors="img1 img2")
def ssim(
    img1: Any,
    img2: Any,
    max_val: Any,
    filter_size: Any = 11,
    filter_sigma: Any = 1.5,
    k1: Any = 0.01,
    k2: Any = 0.03,
) -> Any:
    """The structural similarity of images, between -1 and 1."""
    most = float(convert_image_dtype(np.asarray(max_val, img1.dtype), "float32"))
    x, y = convert_image_dtype(img1, "float32"), convert_image_dtype(img2, "float32")
    size = int(filter_size)
    line = np.exp(-0.5 * (np.arange(size) - (size - 1) / 2) ** 2 / float(filter_sigma) ** 2)
    line /= line.sum()

    def smooth(image: Any) -> Any:
        for axis in (-3, -2):
            count = image.shape[axis] - size + 1
            image = sum(
                jax.lax.slice_in_dim(image, i, i + count, axis=axis % image.ndim) * np.float32(line[i])
                for i in range(size)
            )
        return image

    c1, c2 = (float(k1) * most) ** 2, (float(k2) * most) ** 2
    mean_x, mean_y = smooth(x), smooth(y)
    product = mean_x * mean_y * 2
    squares = mean_x**2 + mean_y**2
    brightness = (product + c1) / (squares + c1)
    structure = (smooth(x * y) * 2 - product + c2) / (smooth(x**2 + y**2) - squares + c2)
    return (brightness * structure).mean((-3, -2)).mean(-1)
