"""Convolutional layers."""

from __future__ import annotations

from typing import Any, ClassVar

from trainband.compat.ops import windows
from trainband.compat.tf1.networks.core import AFTER, Weighted, channels_of
from trainband.compat.tf1.networks.layer import InputSpec, listed
from trainband.compat.tf1.operations.recorder import recorded


class _Convolutional(Weighted):
    @property
    def _channels_first(self) -> bool:
        return bool(self.data_format == "channels_first")

    def _channels(self, input_shape: Any) -> int:
        axis = 1 if self._channels_first else -1
        found = channels_of(input_shape, type(self).__name__, axis, "channel")
        self.input_spec = InputSpec(ndim=self.axes + 2, axes={axis: found})
        return found

    def _bias(self) -> Any:
        return self._weight("bias", [int(self.filters)]) if self.use_bias else None


class _Conv(_Convolutional):
    def build(self, input_shape: Any) -> None:
        """Creates the kernel and the bias."""
        channels = self._channels(input_shape)
        self.kernel = self._weight("kernel", [*self.kernel_size, channels, int(self.filters)])
        self.bias = self._bias()
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        outputs = recorded(windows.convolution)(
            inputs,
            self.kernel,
            self.strides,
            self.padding.upper(),
            self.dilation_rate,
            self._channels_first,
            name=f"Conv{self.axes}D",
        )
        return self._finished(outputs, self.data_format)


_CONV = f"filters kernel_size strides=1 padding='valid' data_format='channels_last' dilation_rate=1 {AFTER}"


class Conv1D(_Conv):
    """activation(the convolution of sequences with a kernel + bias)."""

    axes = 1
    settings = listed(_CONV)


class Conv2D(_Conv):
    """activation(the convolution of images with a kernel + bias)."""

    axes = 2
    settings = listed(_CONV)


class Conv3D(_Conv):
    """activation(the convolution of volumes with a kernel + bias)."""

    axes = 3
    settings = listed(_CONV)


class _Transposed(_Convolutional):
    settings = listed(f"filters kernel_size strides=1 padding='valid' data_format='channels_last' {AFTER}")

    def build(self, input_shape: Any) -> None:
        """Creates the kernel and the bias."""
        channels = self._channels(input_shape)
        self.kernel = self._weight("kernel", [*self.kernel_size, int(self.filters), channels])
        self.bias = self._bias()
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        outputs = recorded(windows.transposed)(
            inputs, self.kernel, self.strides, self.padding.upper(), self._channels_first
        )
        return self._finished(outputs, self.data_format)


class Conv2DTranspose(_Transposed):
    """activation(what a convolution's gradient does to images + bias)."""

    axes = 2


class Conv3DTranspose(_Transposed):
    """activation(what a convolution's gradient does to volumes + bias)."""

    axes = 3


class _Separable(_Convolutional):
    mixes: ClassVar[bool] = True
    """Whether the channels are mixed afterwards."""

    settings = listed(
        """filters kernel_size strides=1 padding='valid' data_format='channels_last' dilation_rate=1
        depth_multiplier=1 activation=None use_bias=True depthwise_initializer=None pointwise_initializer=None
        bias_initializer=zeros depthwise_regularizer=None pointwise_regularizer=None bias_regularizer=None
        activity_regularizer=None depthwise_constraint=None pointwise_constraint=None bias_constraint=None
        trainable=True name=None"""
    )

    def build(self, input_shape: Any) -> None:
        """Creates both kernels and the bias."""
        channels, times = self._channels(input_shape), int(self.depth_multiplier)
        sizes = self.kernel_size
        self.depthwise_kernel = self._weight("depthwise_kernel", [*sizes, channels, times], "depthwise")
        if not self.mixes:
            self.filters = channels * times
        ones = (1,) * self.axes
        self.pointwise_kernel = (
            self._weight("pointwise_kernel", [*ones, channels * times, int(self.filters)], "pointwise")
            if self.mixes
            else None
        )
        self.bias = self._bias()
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        ones = (1,) * self.axes
        inner = recorded(windows.depthwise)(
            inputs,
            self.depthwise_kernel,
            self.strides,
            self.padding.upper(),
            self.dilation_rate,
            self._channels_first,
        )
        if not self.mixes:
            return self._finished(inner, self.data_format)
        outputs = recorded(windows.convolution)(
            inner, self.pointwise_kernel, ones, "VALID", ones, self._channels_first
        )  # fmt: skip
        return self._finished(outputs, self.data_format)


class SeparableConv1D(_Separable):
    """A convolution of each channel of sequences by itself, then one of size 1, a bias and an activation."""

    axes = 1


class SeparableConv2D(_Separable):
    """A convolution of each channel of images by itself, then one of size 1, a bias and an activation."""

    axes = 2
