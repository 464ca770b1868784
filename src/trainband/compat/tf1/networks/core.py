"""Dense layers, dropout and flattening."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trainband.compat.ops import activations, array, matrices, random, windows
from trainband.compat.ops.dtypes import bool_
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert, known_value
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.networks.layer import Configured, InputSpec, listed
from trainband.compat.tf1.operations.array import reshape
from trainband.compat.tf1.operations.control_flow import cond
from trainband.compat.tf1.operations.recorder import recorded

AFTER = """activation=None use_bias=True kernel_initializer=None bias_initializer=zeros kernel_regularizer=None
    bias_regularizer=None activity_regularizer=None kernel_constraint=None bias_constraint=None trainable=True
    name=None"""
"""The parameters that all layers with a kernel and a bias have last."""


class Weighted(Configured):
    """A layer with a kernel and a bias."""

    def _weight(self, name: str, shape: Any, kind: str = "") -> Any:
        kind = kind or name
        parts = {part: getattr(self, f"{kind}_{part}") for part in ("initializer", "regularizer", "constraint")}
        return self.add_weight(name, shape, **parts)

    def _finished(self, outputs: Any, data_format: str = "channels_last") -> Any:
        """The bias added, and the activation applied."""
        if self.use_bias:
            layout = "NCHW" if data_format == "channels_first" else "NHWC"
            outputs = recorded(activations.bias_add)(outputs, self.bias, layout)
        return outputs if self.activation is None else self.activation(outputs)


def channels_of(shape: Any, layer: str, axis: int = -1, which: str = "last") -> int:
    """Return the number of channels of a layer's inputs.

    Raises:
      ValueError: it is unknown.
    """
    sizes = TensorShape(shape).sizes
    if sizes is None or sizes[axis] is None:
        whose = f" to `{layer}`" if which == "last" else ""
        raise ValueError(
            f"The {which} dimension of the inputs{whose} should be defined. Found `None`. (at {user_line()})"
        )
    return int(sizes[axis] or 0)


class Dense(Weighted):
    """activation(inputs kernel + bias)."""

    settings = listed(f"units {AFTER}")

    def build(self, input_shape: Any) -> None:
        """Creates the kernel and the bias."""
        last = channels_of(input_shape, "Dense")
        self.input_spec = InputSpec(min_ndim=2, axes={-1: last})
        self.kernel = self._weight("kernel", [last, int(self.units)])
        self.bias = self._weight("bias", [int(self.units)]) if self.use_bias else None
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        rank = inputs.shape.ndims or 2
        if rank == 2:
            return self._finished(recorded(matrices.matmul)(inputs, self.kernel))
        return self._finished(recorded(matrices.tensordot)(inputs, self.kernel, [[rank - 1], [0]]))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the outputs' shape."""
        sizes = TensorShape(input_shape).sizes or ()
        if len(sizes) < 2:
            raise ValueError(f"Dense needs inputs of rank 2 or more, not of shape {TensorShape(input_shape)}.")
        channels_of(input_shape, "Dense")
        return TensorShape([*sizes[:-1], int(self.units)])


class Flatten(Configured):
    """One row for each example."""

    settings = listed("data_format='channels_last' name=None")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.input_spec = InputSpec(min_ndim=2)

    def call(self, inputs: Any) -> Any:
        """Return the outputs."""
        return flat(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the outputs' shape."""
        first, *rest = TensorShape(input_shape).as_list()
        return TensorShape([first, None if None in rest else math.prod(rest)])


def flat(inputs: Any, name: str | None = None) -> Tensor:
    """One row for each example."""
    x = convert(inputs)
    sizes = x.shape.as_list() if x.shape.ndims is not None else [None, None]
    if None in sizes[1:]:
        stacked = recorded(array.stack)([recorded(array.shape)(x)[0], -1])
        return reshape(x, stacked, name=name)
    count = 1
    for size in sizes[1:]:
        count *= size or 0
    if count == 0:
        return recorded(windows.to_rows)(x)  # type: ignore[no-any-return]
    return reshape(x, [-1, count], name=name)


class Dropout(Configured):
    """Zeroes each element with the probability `rate`, while training."""

    settings = listed("rate=0.5 noise_shape=None seed=None name=None")

    def call(self, inputs: Any, training: Any = False) -> Any:
        """Return the outputs."""

        def dropped() -> Any:
            return recorded(random.dropout)(
                inputs, keep_prob=1.0 - self.rate, noise_shape=self.noise_shape, seed=self.seed
            )

        return while_training(training, dropped, lambda: recorded(array.identity)(inputs))


def known_training(training: Any) -> bool | None:
    """Whether a model is trained; `None` if a run decides."""
    if training is None or isinstance(training, bool | int):
        return bool(training)
    known = known_value(convert(training, bool_))
    return None if known is None else bool(known)


def while_training(training: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """One result while training, and another at other times."""
    known = known_training(training)
    return cond(training, yes, no) if known is None else yes() if known else no()
