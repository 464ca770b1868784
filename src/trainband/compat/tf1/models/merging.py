# ruff: noqa: SLF001 - layers and models are of one package
"""Layers that merge several inputs into one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from trainband.compat.ops import keras_layers, math
from trainband.compat.tf1.models.layer import Layer
from trainband.compat.tf1.networks.layer import Configured, listed
from trainband.compat.tf1.operations.array import concat
from trainband.compat.tf1.operations.recorder import recorded


class _Merged(Layer):
    """A layer of a list of inputs."""

    supports_masking = True
    pair: ClassVar[Callable[[Any, Any], Any]]
    count: ClassVar[int | None] = None
    """How many inputs it takes, where that is fixed."""

    def call(self, inputs: Sequence[Any]) -> Any:
        """Return the outputs."""
        if not isinstance(inputs, list | tuple) or (self.count is not None and len(inputs) != self.count):
            raise ValueError(
                f"A `{type(self).__name__}` layer should be called on a list of {self.count or ''} inputs."
            )
        return functools.reduce(type(self).pair, inputs)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Which steps count: those of the first inputs that says it."""
        del mask
        return next((one._keras_mask for one in inputs if hasattr(one, "_keras_mask")), None)


class Add(_Merged):
    """The sum."""

    pair = staticmethod(recorded(math.add))


class Subtract(_Merged):
    """The difference."""

    pair = staticmethod(recorded(math.subtract))
    count = 2


class Multiply(_Merged):
    """The product."""

    pair = staticmethod(recorded(math.multiply))


class Maximum(_Merged):
    """The larger ones."""

    pair = staticmethod(recorded(math.maximum))


class Minimum(_Merged):
    """The smaller ones."""

    pair = staticmethod(recorded(math.minimum))


class Average(_Merged):
    """The mean."""

    pair = staticmethod(recorded(math.add))

    def call(self, inputs: Sequence[Any]) -> Any:
        """Return the outputs."""
        return super().call(inputs) / len(inputs)


class Concatenate(_Merged):
    """One after the other, along an axis."""

    def __init__(self, axis: int = -1, **more: Any) -> None:
        super().__init__(**more)
        self.axis = axis

    def call(self, inputs: Sequence[Any]) -> Any:
        """Return the outputs."""
        return concat(list(inputs), self.axis)


class Dot(Layer, Configured):
    """The products of the examples of two inputs, summed along an axis of each."""

    settings = listed("axes normalize=False name=None")

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        axes = [self.axes] * 2 if isinstance(self.axes, int) else list(self.axes)
        return recorded(keras_layers.dotted)(inputs[0], inputs[1], axes, self.normalize)


def _function(layer: Callable[..., Any]) -> Callable[..., Any]:
    def merge(inputs: Any, **more: Any) -> Any:
        return layer(**more)(inputs)

    merge.__doc__ = layer.__doc__
    return merge


add, subtract, multiply, average, maximum, minimum = map(
    _function, (Add, Subtract, Multiply, Average, Maximum, Minimum)
)  # fmt: skip


def concatenate(inputs: Any, axis: int = -1, **more: Any) -> Any:
    """One after the other, along an axis."""
    return Concatenate(axis, **more)(inputs)


def dot(inputs: Any, axes: Any, normalize: bool = False, **more: Any) -> Any:
    """The products of the examples of two inputs, summed along an axis of each."""
    return Dot(axes, normalize, **more)(inputs)
