"""Convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, sizes_of
from trainband.compat.ops.pooling import avg_pool as avg_pool
from trainband.compat.ops.pooling import max_pool as max_pool
from trainband.compat.ops.table import op


def _spread(value: Any, data_format: str, count: int = 2) -> tuple[int, ...]:
    """Strides or window sizes of the image's axes, given for all axes or for these."""
    sizes = [int(one) for one in np.ravel(value)]
    if len(sizes) == 1:
        return (sizes[0],) * count
    if len(sizes) == count:
        return tuple(sizes)
    return tuple(sizes[2:]) if data_format.startswith("NC") else tuple(sizes[1 : 1 + count])


_LAYOUTS = {3: ("NWC", "WIO"), 4: ("NHWC", "HWIO"), 5: ("NDHWC", "DHWIO")}


def _convolved(
    x: Any, kernel: Any, strides: Any, padding: Any, data_format: str | None, dilations: Any, groups: int = 0
) -> Any:
    """A convolution over all axes but the first and that of the channels; the kernel is [..., in, out]."""
    usual, of_kernel = _LAYOUTS[x.ndim]
    layout, count = data_format or usual, x.ndim - 2
    channels = x.shape[layout.index("C")]
    if not groups and (kernel.shape[-2] == 0 or channels % kernel.shape[-2]):
        raise ArgumentError(
            f"Depth of input ({channels}) is not a multiple of input depth of filter ({kernel.shape[-2]})"
        )
    edges: Any = padding if isinstance(padding, str) else [
        tuple(int(one) for one in pair) for letter, pair in zip(layout, padding, strict=True) if letter not in "NC"
    ]  # fmt: skip
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        _spread(strides, layout, count),
        edges,
        rhs_dilation=_spread(1 if dilations is None else dilations, layout, count),
        dimension_numbers=(layout, of_kernel, layout),
        feature_group_count=groups or channels // kernel.shape[-2],
    )


def _convolution(name: str, type_: str, axes: int, v1: str) -> Callable[..., Any]:
    usual = _LAYOUTS[axes + 2][0]

    def compute(
        input: Any,  # noqa: A002 - TensorFlow's names
        filter: Any,  # noqa: A002
        strides: Any,
        padding: Any,
        data_format: str = usual,
        dilations: Any = (1,) * (axes + 2),
    ) -> Any:
        return _convolved(input, filter, strides, padding, data_format, dilations)

    compute.__name__ = name
    compute.__doc__ = f"A convolution over {axes} axes; the filter is [size, ..., in, out]."
    return op(f"tf.nn.{name}", type=type_, tensors="input filter", alike="input filter", v1=v1)(compute)


_CONVOLUTION = "input filter strides padding {}data_format dilations name filters=filter"
conv1d = _convolution(
    "conv1d", "Conv1D", 1,
    "value=input filters=filter stride=strides padding -use_cudnn_on_gpu data_format name input dilations",
)  # fmt: skip
conv2d = _convolution("conv2d", "Conv2D", 2, _CONVOLUTION.format("-use_cudnn_on_gpu=True "))
conv3d = _convolution("conv3d", "Conv3D", 3, _CONVOLUTION.format(""))


@op(
    "tf.nn.convolution",
    type="convolution",
    tensors="input filter",
    alike="input filter",
    v1="input filter padding strides dilation_rate=dilations name data_format filters=filter dilations",
)
def convolution(
    input: Any,  # noqa: A002
    filter: Any,  # noqa: A002
    padding: Any,
    strides: Any = None,
    data_format: Any = None,
    dilations: Any = None,
) -> Any:
    """A convolution over one, two or three axes."""
    return _convolved(input, filter, 1 if strides is None else strides, padding, data_format, dilations)


@op("tf.nn.atrous_conv2d", type="atrous_conv2d", tensors="value filters", alike="value filters")
def atrous_conv2d(value: Any, filters: Any, rate: Any, padding: str) -> Any:
    """A convolution with holes in the filter."""
    return _convolved(value, filters, 1, padding, None, rate)


@op(
    "tf.nn.atrous_conv2d_transpose", type="atrous_conv2d_transpose", tensors="value filters output_shape",
    alike="value filters", shapes="output_shape",
)  # fmt: skip
def atrous_conv2d_transpose(value: Any, filters: Any, output_shape: Any, rate: Any, padding: str) -> Any:
    """What the gradient of `atrous_conv2d` does; the filter is [height, width, out, in]."""
    return _pulled_back(output_shape, value, filters, 1, padding, None, rate)


def _pulled_back(output_shape: Any, value: Any, kernel: Any, *how: Any) -> Any:
    sizes = sizes_of(output_shape, "the output shape of a transposed convolution")
    zeros = jnp.zeros(sizes, value.dtype)
    _, pull_back = jax.vjp(lambda images: _convolved(images, kernel, *how), zeros)
    return pull_back(value)[0]


def _transposed(name: str, type_: str, axes: int, v1: str) -> Callable[..., Any]:
    usual = _LAYOUTS[axes + 2][0]

    def compute(
        value: Any,
        filter: Any,  # noqa: A002
        output_shape: Any,
        strides: Any,
        padding: Any = "SAME",
        data_format: str = usual,
        dilations: Any = None,
    ) -> Any:
        return _pulled_back(output_shape, value, filter, strides, padding, data_format, dilations)

    compute.__name__ = name
    compute.__doc__ = f"Computes the gradient of a convolution over {axes} axes; the filter is [size, ..., out, in]."
    return op(
        f"tf.nn.{name}", type=type_, tensors="value filter output_shape", alike="value filter", shapes="output_shape",
        v1=v1,
    )(compute)  # fmt: skip


_TRANSPOSED = "value filter output_shape strides padding data_format name input=value filters=filter dilations"
conv1d_transpose = _transposed(
    "conv1d_transpose", "Conv1DTranspose", 1,
    "value filter output_shape stride=strides padding data_format name input=value filters=filter strides dilations",
)  # fmt: skip
conv2d_transpose = _transposed("conv2d_transpose", "Conv2DBackpropInput", 2, _TRANSPOSED)
conv3d_transpose = _transposed("conv3d_transpose", "Conv3DBackpropInput", 3, _TRANSPOSED)


@op(
    v1_names="tf.nn.conv2d_backprop_input", type="Conv2DBackpropInput", tensors="input_sizes filter out_backprop",
    shapes="input_sizes",
    v1="input_sizes filter out_backprop strides padding -use_cudnn_on_gpu=True data_format dilations name",
)  # fmt: skip
def conv2d_backprop_input(
    input_sizes: Any, filter: Any, out_backprop: Any, strides: Any, padding: Any,  # noqa: A002
    data_format: str = "NHWC", dilations: Any = None,
) -> Any:  # fmt: skip
    """The gradient of a convolution by its images."""
    return _pulled_back(input_sizes, out_backprop, filter, strides, padding, data_format, dilations)


def _pulled_back_kernel(filter_sizes: Any, gradient: Any, convolve: Callable[[Any], Any]) -> Any:
    zeros = jnp.zeros(sizes_of(filter_sizes, "the sizes of a filter"), gradient.dtype)
    _, pull_back = jax.vjp(convolve, zeros)
    return pull_back(gradient)[0]


_FILTER_V1 = "input filter_sizes out_backprop strides padding {}data_format dilations name"


def _backprop_filter(name: str, type_: str, axes: int, v1: str) -> Callable[..., Any]:
    usual = _LAYOUTS[axes + 2][0]

    def compute(
        input: Any, filter_sizes: Any, out_backprop: Any, strides: Any, padding: Any,  # noqa: A002
        data_format: str = usual, dilations: Any = None,
    ) -> Any:  # fmt: skip
        return _pulled_back_kernel(
            filter_sizes, out_backprop,
            lambda kernel: _convolved(input, kernel, strides, padding, data_format, dilations),
        )  # fmt: skip

    compute.__name__ = name
    compute.__doc__ = f"The gradient of a convolution over {axes} axes by its filter."
    return op(
        v1_names=f"tf.nn.{name}", type=type_, tensors="input filter_sizes out_backprop", shapes="filter_sizes", v1=v1
    )(compute)  # fmt: skip


conv2d_backprop_filter = _backprop_filter(
    "conv2d_backprop_filter", "Conv2DBackpropFilter", 2, _FILTER_V1.format("-use_cudnn_on_gpu=True ")
)
conv3d_backprop_filter = _backprop_filter(
    "conv3d_backprop_filter_v2", "Conv3DBackpropFilterV2", 3, _FILTER_V1.format("")
)


def _by_channel(x: Any, kernel: Any, strides: Any, padding: Any, data_format: str | None, rate: Any) -> Any:
    height, width, channels, times = kernel.shape
    whole = kernel.reshape(height, width, 1, channels * times)
    return _convolved(x, whole, strides, padding, data_format, rate, groups=channels)


@op(
    "tf.nn.depthwise_conv2d",
    v1_names="tf.nn.depthwise_conv2d_native",
    type="DepthwiseConv2dNative",
    tensors="input filter",
    alike="input filter",
    v1="input filter strides padding rate name data_format dilations=rate",
)
def depthwise_conv2d(
    input: Any, filter: Any, strides: Any, padding: Any, rate: Any = None, data_format: Any = None,  # noqa: A002
) -> Any:  # fmt: skip
    """A convolution of each channel by itself; the filter is [height, width, in, multiplier]."""
    return _by_channel(input, filter, strides, padding, data_format, rate)


@op(
    "tf.nn.separable_conv2d",
    type="separable_conv2d",
    tensors="input depthwise_filter pointwise_filter",
    alike="input depthwise_filter pointwise_filter",
    v1="input depthwise_filter pointwise_filter strides padding rate name data_format dilations=rate",
)
def separable_conv2d(
    input: Any, depthwise_filter: Any, pointwise_filter: Any, strides: Any, padding: Any, rate: Any = None,  # noqa: A002
    data_format: Any = None,
) -> Any:  # fmt: skip
    """A convolution of each channel by itself, and then one over the channels alone."""
    deep = _by_channel(input, depthwise_filter, strides, padding, data_format, rate)
    return _convolved(deep, pointwise_filter, 1, "VALID", data_format, 1)


_DEPTHWISE_V1 = "out_backprop strides padding data_format dilations name"


@op(
    "tf.nn.depthwise_conv2d_backprop_input", v1_names="tf.nn.depthwise_conv2d_native_backprop_input",
    type="DepthwiseConv2dNativeBackpropInput", tensors="input_sizes filter out_backprop", shapes="input_sizes",
    v1=f"input_sizes filter {_DEPTHWISE_V1}",
)  # fmt: skip
def depthwise_conv2d_backprop_input(
    input_sizes: Any, filter: Any, out_backprop: Any, strides: Any, padding: Any,  # noqa: A002
    data_format: str = "NHWC", dilations: Any = None,
) -> Any:  # fmt: skip
    """The gradient of a depthwise convolution by its images."""
    zeros = jnp.zeros(sizes_of(input_sizes, "the sizes of images"), out_backprop.dtype)
    _, pull_back = jax.vjp(lambda x: _by_channel(x, filter, strides, padding, data_format, dilations), zeros)
    return pull_back(out_backprop)[0]


@op(
    "tf.nn.depthwise_conv2d_backprop_filter", v1_names="tf.nn.depthwise_conv2d_native_backprop_filter",
    type="DepthwiseConv2dNativeBackpropFilter", tensors="input filter_sizes out_backprop", shapes="filter_sizes",
    v1=f"input filter_sizes {_DEPTHWISE_V1}",
)  # fmt: skip
def depthwise_conv2d_backprop_filter(
    input: Any, filter_sizes: Any, out_backprop: Any, strides: Any, padding: Any,  # noqa: A002
    data_format: str = "NHWC", dilations: Any = None,
) -> Any:  # fmt: skip
    """The gradient of a depthwise convolution by its filter."""
    return _pulled_back_kernel(
        filter_sizes, out_backprop,
        lambda kernel: _by_channel(input, kernel, strides, padding, data_format, dilations),
    )  # fmt: skip
