"""Convolutions and pooling."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import sizes_of
from trainband.compat.ops.table import op


def _spread(value: Any, data_format: str, count: int = 2) -> tuple[int, ...]:
    """Strides or window sizes of the image's axes, given for all axes or for these."""
    sizes = [int(one) for one in np.ravel(value)]
    if len(sizes) == 1:
        return (sizes[0],) * count
    if len(sizes) == count:
        return tuple(sizes)
    return tuple(sizes[2:]) if data_format.startswith("NC") else tuple(sizes[1 : 1 + count])


@op(
    "tf.nn.conv2d",
    type="Conv2D",
    tensors="input filter",
    alike="input filter",
    v1="input filter strides padding -use_cudnn_on_gpu=True data_format dilations name filters=filter",
)
def conv2d(
    input: Any,  # noqa: A002 - TensorFlow's names
    filter: Any,  # noqa: A002
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
) -> Any:
    """A convolution over height and width; the filter is [height, width, in, out]."""
    edges = padding if isinstance(padding, str) else [tuple(one) for one in padding][1:3]
    return jax.lax.conv_general_dilated(
        input,
        filter,
        _spread(strides, data_format),
        edges,
        rhs_dilation=_spread(dilations, data_format),
        dimension_numbers=(data_format, "HWIO", data_format),
    )


@op("tf.nn.conv1d", type="Conv1D", tensors="value filters", alike="value filters")
def conv1d(value: Any, filters: Any, stride: Any, padding: str) -> Any:
    """A convolution along one axis; the filter is [width, in, out]."""
    return jax.lax.conv_general_dilated(
        value, filters, (int(stride),), padding, dimension_numbers=("NWC", "WIO", "NWC")
    )  # fmt: skip


@op(
    "tf.nn.conv2d_transpose",
    type="Conv2DBackpropInput",
    tensors="value filter output_shape",
    alike="value filter",
    shapes="output_shape",
)
def conv2d_transpose(
    value: Any,
    filter: Any,  # noqa: A002
    output_shape: Any,
    strides: Any,
    padding: str = "SAME",
    data_format: str = "NHWC",
) -> Any:
    """What a convolution's gradient does; the filter is [height, width, out, in]."""
    sizes = sizes_of(output_shape, "the output shape of conv2d_transpose")

    def forward(images: Any) -> Any:
        return conv2d(images, filter, strides, padding, data_format)

    _, pull_back = jax.vjp(forward, jnp.zeros(sizes, value.dtype))
    return pull_back(value)[0]


@op(
    "tf.nn.depthwise_conv2d",
    type="DepthwiseConv2dNative",
    tensors="input filter",
    alike="input filter",
)
def depthwise_conv2d(input: Any, filter: Any, strides: Any, padding: str) -> Any:  # noqa: A002
    """A convolution of each channel by itself; the filter is [height, width, in, multiplier]."""
    height, width, channels, times = filter.shape
    return jax.lax.conv_general_dilated(
        input,
        filter.reshape(height, width, 1, channels * times),
        _spread(strides, "NHWC"),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=channels,
    )


def _whole(value: Any, data_format: str) -> tuple[int, ...]:
    """Window sizes or strides for every axis."""
    pair = _spread(value, data_format)
    return (1, 1, *pair) if data_format.startswith("NC") else (1, *pair, 1)


_POOL = "value ksize strides padding data_format name input=value"


@op("tf.nn.max_pool", v1_names="tf.nn.max_pool2d", type="MaxPool", tensors="value", v1=_POOL)
def max_pool(value: Any, ksize: Any, strides: Any, padding: str = "VALID", data_format: str = "NHWC") -> Any:
    """The largest of each window."""
    window, steps = _whole(ksize, data_format), _whole(strides, data_format)
    return jax.lax.reduce_window(value, -jnp.inf, jax.lax.max, window, steps, padding)


@op("tf.nn.avg_pool", v1_names="tf.nn.avg_pool2d", type="AvgPool", tensors="value", v1=_POOL)
def avg_pool(value: Any, ksize: Any, strides: Any, padding: str = "VALID", data_format: str = "NHWC") -> Any:
    """The mean of each window; at the edges, of what lies inside the image."""
    window, steps = _whole(ksize, data_format), _whole(strides, data_format)
    total = jax.lax.reduce_window(value, 0.0, jax.lax.add, window, steps, padding)
    ones = jnp.ones([size if spread > 1 else 1 for size, spread in zip(value.shape, window, strict=True)], value.dtype)
    return total / jax.lax.reduce_window(ones, 0.0, jax.lax.add, window, steps, padding)
