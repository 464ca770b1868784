"""Pooling layers."""

from __future__ import annotations

from typing import Any, ClassVar

from trainband.compat.ops import windows
from trainband.compat.tf1.networks.layer import Configured, listed
from trainband.compat.tf1.operations.recorder import recorded


class _Pooling(Configured):
    settings = listed("pool_size strides padding='valid' data_format='channels_last' name=None")
    largest: ClassVar[bool] = True

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return recorded(windows.pool)(
            inputs,
            self.pool_size,
            self.strides,
            self.padding.upper(),
            self.data_format == "channels_first",
            self.largest,
            name="MaxPool" if self.largest else "AvgPool",
        )


class MaxPooling1D(_Pooling):
    """The largest of each window of sequences."""

    axes = 1


class MaxPooling2D(_Pooling):
    """The largest of each window of images."""

    axes = 2


class MaxPooling3D(_Pooling):
    """The largest of each window of volumes."""

    axes = 3


class AveragePooling1D(_Pooling):
    """The mean of each window of sequences."""

    axes = 1
    largest = False


class AveragePooling2D(_Pooling):
    """The mean of each window of images."""

    axes = 2
    largest = False


class AveragePooling3D(_Pooling):
    """The mean of each window of volumes."""

    axes = 3
    largest = False
