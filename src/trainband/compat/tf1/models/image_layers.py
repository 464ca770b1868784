"""Convolutional and pooling layers, and what pads, crops and enlarges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from trainband.compat.ops import keras_layers
from trainband.compat.tf1.models import phase
from trainband.compat.tf1.models.core_layers import AFTER
from trainband.compat.tf1.models.layer import Layer
from trainband.compat.tf1.networks import convolution, pooling
from trainband.compat.tf1.networks.arguments import normalize_tuple
from trainband.compat.tf1.networks.layer import Configured, listed
from trainband.compat.tf1.operations.recorder import recorded
from trainband.runtime.overrides import override

_CONV = f"filters kernel_size strides=1 padding='valid' data_format=None dilation_rate=1 {AFTER}"
_TRANSPOSED = f"""filters kernel_size strides=1 padding='valid' output_padding=None data_format=None dilation_rate=1
    {AFTER}"""
_SEPARABLE = """filters kernel_size strides=1 padding='valid' data_format=None dilation_rate=1 depth_multiplier=1
    activation=None use_bias=True depthwise_initializer='glorot_uniform' pointwise_initializer='glorot_uniform'
    bias_initializer='zeros' depthwise_regularizer=None pointwise_regularizer=None bias_regularizer=None
    activity_regularizer=None depthwise_constraint=None pointwise_constraint=None bias_constraint=None trainable=True
    name=None"""


class Conv1D(Layer, convolution.Conv1D):
    """activation(the convolution of sequences with a kernel + bias)."""

    settings = listed(_CONV)


class Conv2D(Layer, convolution.Conv2D):
    """activation(the convolution of images with a kernel + bias)."""

    settings = listed(_CONV)


class Conv3D(Layer, convolution.Conv3D):
    """activation(the convolution of volumes with a kernel + bias)."""

    settings = listed(_CONV)


class _Transposed(Layer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.__dict__["output_padding"] is not None or self.__dict__["dilation_rate"] not in (1, (1, 1), [1, 1]):
            raise ValueError(f"{type(self).__name__}: output_padding and dilation_rate are not supported.")


class Conv2DTranspose(_Transposed, convolution.Conv2DTranspose):
    """activation(what a convolution's gradient does to images + bias)."""

    settings = listed(_TRANSPOSED)


class Conv3DTranspose(_Transposed, convolution.Conv3DTranspose):
    """activation(what a convolution's gradient does to volumes + bias)."""

    settings = listed(_TRANSPOSED)


class SeparableConv1D(Layer, convolution.SeparableConv1D):
    """A convolution of each channel of sequences by itself, then one of size 1, a bias and an activation."""

    settings = listed(_SEPARABLE)


class SeparableConv2D(Layer, convolution.SeparableConv2D):
    """A convolution of each channel of images by itself, then one of size 1, a bias and an activation."""

    settings = listed(_SEPARABLE)


class DepthwiseConv2D(Layer, convolution.SeparableConv2D):
    """A convolution of each channel of images by itself, a bias and an activation."""

    mixes = False
    settings = listed(
        """kernel_size strides=1 padding='valid' depth_multiplier=1 data_format=None activation=None use_bias=True
        depthwise_initializer='glorot_uniform' bias_initializer='zeros' depthwise_regularizer=None
        bias_regularizer=None activity_regularizer=None depthwise_constraint=None bias_constraint=None dilation_rate=1
        trainable=True name=None"""
    )


_POOLING = listed("pool_size=2 strides=None padding='valid' data_format=None name=None")


class MaxPooling1D(Layer, pooling.MaxPooling1D):
    """The largest of each window of sequences."""

    settings = _POOLING


class MaxPooling2D(Layer, pooling.MaxPooling2D):
    """The largest of each window of images."""

    settings = _POOLING


class MaxPooling3D(Layer, pooling.MaxPooling3D):
    """The largest of each window of volumes."""

    settings = _POOLING


class AveragePooling1D(Layer, pooling.AveragePooling1D):
    """The mean of each window of sequences."""

    settings = _POOLING


class AveragePooling2D(Layer, pooling.AveragePooling2D):
    """The mean of each window of images."""

    settings = _POOLING


class AveragePooling3D(Layer, pooling.AveragePooling3D):
    """The mean of each window of volumes."""

    settings = _POOLING


class _OverAll(Layer, Configured):
    settings = listed("data_format=None name=None")
    axes: ClassVar[int]
    largest: ClassVar[bool] = False

    def call(self, inputs: Any, mask: Any = None) -> Any:
        """Return the outputs."""
        first = 2 if self.data_format == "channels_first" else 1
        axes = list(range(first, first + self.axes))
        return recorded(keras_layers.over_all)(inputs, mask if self.axes == 1 else None, axes, self.largest)


class GlobalAveragePooling1D(_OverAll):
    """The mean over all steps."""

    axes = 1


class GlobalAveragePooling2D(_OverAll):
    """The mean over each image."""

    axes = 2


class GlobalAveragePooling3D(_OverAll):
    """The mean over each volume."""

    axes = 3


class GlobalMaxPooling1D(_OverAll):
    """The largest of all steps."""

    axes = 1
    largest = True


class GlobalMaxPooling2D(_OverAll):
    """The largest of each image."""

    axes = 2
    largest = True


class GlobalMaxPooling3D(_OverAll):
    """The largest of each volume."""

    axes = 3
    largest = True


class _Edges(Layer, Configured):
    """Layers that change how far the inner axes go."""

    axes: ClassVar[int]

    @override
    def _in_one_form(self, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("data_format", "") is not None:
            return values
        return {**values, "data_format": phase.image_data_format()}

    def _whole(self, inner: Sequence[Any], outer: Any) -> list[Any]:
        first = self.__dict__.get("data_format") == "channels_first"
        return [outer, outer, *inner] if first else [outer, *inner, outer]

    def _widths(self, given: Any) -> list[Any]:
        each = [given] * self.axes if isinstance(given, int) else list(given)
        if self.axes == 1 and not isinstance(given, int):
            each = [tuple(given)]
        return self._whole([(one, one) if isinstance(one, int) else tuple(one) for one in each], (0, 0))


class _ZeroPadding(_Edges):
    settings = listed("padding=1 data_format=None name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return recorded(keras_layers.padded)(inputs, self._widths(self.padding))


class ZeroPadding1D(_ZeroPadding):
    """Zeros around sequences."""

    axes = 1


class ZeroPadding2D(_ZeroPadding):
    """Zeros around images."""

    axes = 2


class ZeroPadding3D(_ZeroPadding):
    """Zeros around volumes."""

    axes = 3


class _Cropping(_Edges):
    settings = listed("cropping=1 data_format=None name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return recorded(keras_layers.cropped)(inputs, self._widths(self.cropping))


class Cropping1D(_Cropping):
    """Sequences without their ends."""

    axes = 1


class Cropping2D(_Cropping):
    """Images without their edges."""

    axes = 2


class Cropping3D(_Cropping):
    """Volumes without their edges."""

    axes = 3


class _UpSampling(_Edges):
    settings = listed("size=2 data_format=None interpolation='nearest' name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        if self.interpolation != "nearest":
            raise ValueError(f"{type(self).__name__}: interpolation={self.interpolation!r} is not supported.")
        return recorded(keras_layers.repeated)(inputs, self._whole(normalize_tuple(self.size, self.axes, "size"), 1))


class UpSampling1D(_UpSampling):
    """Each step several times."""

    axes = 1


class UpSampling2D(_UpSampling):
    """Each pixel several times."""

    axes = 2


class UpSampling3D(_UpSampling):
    """Each voxel several times."""

    axes = 3
