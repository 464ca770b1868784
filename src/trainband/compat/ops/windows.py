"""Convolutions and pooling over one, two or three axes, for layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.table import op


def _layout(axes: int, channels_first: bool) -> tuple[str, str, str]:
    inner = "DHW"[3 - axes :]
    images = f"NC{inner}" if channels_first else f"N{inner}C"
    return images, f"{inner}IO", images


@op("", type="Convolution", tensors="images kernel", alike="images kernel")
def convolution(
    images: Any,
    kernel: Any,
    strides: Sequence[int],
    padding: str,
    dilations: Sequence[int],
    channels_first: bool = False,
    groups: int = 1,
) -> Any:
    """A convolution over all axes but the first and the channels; the kernel is [*sizes, in, out]."""
    edges: Any = padding
    if padding == "CAUSAL":
        edges = [((size - 1) * step, 0) for size, step in zip(kernel.shape, dilations, strict=False)]
    return jax.lax.conv_general_dilated(
        images,
        kernel,
        tuple(strides),
        edges,
        rhs_dilation=tuple(dilations),
        dimension_numbers=_layout(len(strides), channels_first),
        feature_group_count=groups,
    )


@op("", type="Depthwise", tensors="images kernel", alike="images kernel")
def depthwise(
    images: Any,
    kernel: Any,
    strides: Sequence[int],
    padding: str,
    dilations: Sequence[int],
    channels_first: bool = False,
) -> Any:
    """A convolution of each channel by itself; the kernel is [*sizes, in, multiplier]."""
    *sizes, channels, times = kernel.shape
    flat = kernel.reshape(*sizes, 1, channels * times)
    return convolution(images, flat, strides, padding, dilations, channels_first, channels)


@op("", type="ConvolutionTranspose", tensors="images kernel", alike="images kernel")
def transposed(
    images: Any, kernel: Any, strides: Sequence[int], padding: str, channels_first: bool = False
) -> Any:  # fmt: skip
    """What the gradient of a convolution does to images; the kernel is [*sizes, out, in]."""
    count = len(strides)
    first = 2 if channels_first else 1
    grown = [
        size * step + (max(window - step, 0) if padding == "VALID" else 0)
        for size, step, window in zip(images.shape[first : first + count], strides, kernel.shape, strict=False)
    ]
    channels = kernel.shape[-2]
    shape = (images.shape[0], channels, *grown) if channels_first else (images.shape[0], *grown, channels)

    def forward(larger: Any) -> Any:
        return convolution(larger, kernel, strides, padding, (1,) * count, channels_first)

    _, pull_back = jax.vjp(forward, jnp.zeros(shape, images.dtype))
    return pull_back(images)[0]


@op("", type="Pool", tensors="images")
def pool(
    images: Any,
    window: Sequence[int],
    strides: Sequence[int],
    padding: str,
    channels_first: bool = False,
    largest: bool = True,
) -> Any:
    """The largest of each window, or the mean of what lies inside the image."""

    def whole(sizes: Sequence[int]) -> tuple[int, ...]:
        return (1, 1, *sizes) if channels_first else (1, *sizes, 1)

    spans, steps = whole(window), whole(strides)
    if largest:
        return jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, spans, steps, padding)
    total = jax.lax.reduce_window(images, 0.0, jax.lax.add, spans, steps, padding)
    if padding == "VALID":
        return total / math.prod(spans)
    ones = np.ones([size if span > 1 else 1 for size, span in zip(images.shape, spans, strict=True)], images.dtype)
    return total / jax.lax.reduce_window(ones, 0.0, jax.lax.add, spans, steps, padding)


@op("", type="Reshape", tensors="x like")
def to_axis(x: Any, like: Any, axis: int) -> Any:
    """A vector with its axis where that of another tensor is."""
    return x.reshape([-1 if i == axis % like.ndim else 1 for i in range(like.ndim)])


@op("", type="Reshape", tensors="x")
def to_rows(x: Any) -> Any:
    """One row for each example."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))
