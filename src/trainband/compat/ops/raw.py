"""Operations that TensorFlow makes others of, and that it has under their own names in `tf.raw_ops` alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import axis_of, sizes_of
from trainband.compat.ops.checks import refuse
from trainband.compat.ops.pooling import avg_pool, max_pool
from trainband.compat.ops.table import op


@op(
    v1_names="tf.raw_ops.ConcatOffset",
    type="ConcatOffset",
    lists="shape",
    folds=True,
    outputs=lambda shape, **_: len(shape),
)
def concat_offset(concat_dim: Any, shape: Sequence[Any]) -> Any:
    """Where each of several arrays begins in what they are joined to, from their shapes."""
    axis, first = axis_of(concat_dim), shape[0]
    problem = next(filter(None, (_misfit(one, i, first, axis) for i, one in enumerate(shape))), "")
    if problem:
        refuse(problem)
        return [jnp.zeros_like(one) for one in shape]
    along = np.arange(len(first)) == axis % len(first)
    ends = itertools.accumulate(sizes_of(one, "a shape")[axis] for one in shape)
    return [np.where(along, begin, 0).astype(first.dtype) for begin in [0, *ends][:-1]]


def _misfit(shape: Any, number: int, first: Any, axis: int) -> str:
    """What is wrong with the shape of an array that is to be joined to another one."""
    if np.ndim(shape) != 1:
        return f"input {number} should be a vector, but got shape {list(np.shape(shape))}"
    if not -len(first) <= axis < len(first):
        return f"Concat dim is out of range: {axis} vs. {len(first)}"
    if len(shape) != len(first):
        return f"input {number} should contain {len(first)} elements, but got {len(shape)}"
    if any(a != b for i, (a, b) in enumerate(zip(shape, first, strict=True)) if i != axis % len(first)):
        return (
            f"All dimensions except {axis} must match. Input {number} has shape {_written(shape)} and doesn't match "
            f"input 0 with shape {_written(first)}."
        )
    return ""


def _written(shape: Any) -> str:
    return f"[{' '.join(map(str, shape))}]"


@op(v1_names="tf.raw_ops.BroadcastGradientArgs", type="BroadcastGradientArgs", tensors="s0 s1", outputs=2, folds=True)
def broadcast_gradient_args(s0: Any, s1: Any) -> Any:
    """The axes over which the gradients of two operands that are broadcast must be added up."""
    shapes = [sizes_of(one, "a shape that is broadcast") for one in (s0, s1)]
    whole = np.broadcast_shapes(*shapes)
    padded = [(1,) * (len(whole) - len(one)) + one for one in shapes]
    axes = [
        [i for i, size in enumerate(one) if size == 1 and (other[i] != 1 or i < len(whole) - len(shape))]
        for shape, one, other in zip(shapes, padded, padded[::-1], strict=True)
    ]
    return [np.array(one, s0.dtype) for one in axes]


@op(v1_names="tf.raw_ops.Bucketize", type="Bucketize", tensors="input")
def bucketize(input: Any, boundaries: Any) -> Any:  # noqa: A002 - TensorFlow's name
    """Of each number, how many boundaries are not more than it."""
    if not isinstance(boundaries, list | tuple):
        raise TypeError(f"Expected list for 'boundaries' argument, got {boundaries!r}")
    limits = np.asarray(boundaries, np.float32)
    if (np.diff(limits) < 0).any():
        refuse("Expected sorted boundaries")
    return jnp.searchsorted(limits, jnp.asarray(input, np.float32), side="right").astype(np.int32)


def _inplace(name: str, type_: str, method: str) -> Callable[..., Any]:
    def compute(x: Any, i: Any, v: Any) -> Any:
        whole = jnp.asarray(x)
        places = slice(None) if i is None else jnp.asarray(i) % whole.shape[0]
        return getattr(whole.at[places], method)(-v if type_ == "InplaceSub" else v)

    compute.__name__ = name
    compute.__doc__ = f"TensorFlow's {type_}: an array with other rows; all of them without numbers."
    return op(v1_names=f"tf.raw_ops.{type_}", type=type_, tensors="x i v", optional="i", like={"v": "x", "i": "int32"})(
        compute
    )


inplace_update = _inplace("inplace_update", "InplaceUpdate", "set")
inplace_add = _inplace("inplace_add", "InplaceAdd", "add")
inplace_sub = _inplace("inplace_sub", "InplaceSub", "add")


# --- gradients


def _slope(type_: str, function: Callable[[Any, Any], Any]) -> None:
    def compute(y: Any, dy: Any) -> Any:
        return function(jnp.conj(y), dy)

    compute.__name__ = type_
    compute.__doc__ = f"TensorFlow's {type_}: from a result and the derivative by it, that by the operand."
    op(v1_names=f"tf.raw_ops.{type_}", type=type_, tensors="y dy", alike="y dy")(compute)


for _name, _function in (
    ("ReciprocalGrad", lambda y, dy: -dy * y * y),
    ("RsqrtGrad", lambda y, dy: dy * y**3 * -0.5),
    ("SigmoidGrad", lambda y, dy: dy * y * (1 - y)),
    ("SqrtGrad", lambda y, dy: dy * 0.5 / y),
    ("TanhGrad", lambda y, dy: dy * (1 - y * y)),
):
    _slope(_name, _function)


@op(
    v1_names="tf.raw_ops.MaxPoolGrad", type="MaxPoolGrad", tensors="orig_input orig_output grad",
    alike="orig_input orig_output grad",
)  # fmt: skip
def max_pool_grad(
    orig_input: Any, orig_output: Any, grad: Any, ksize: Any, strides: Any, padding: Any, data_format: str = "NHWC"
) -> Any:
    """The derivative by what the largest of each window were taken of."""
    del orig_output
    return jax.vjp(lambda x: max_pool(x, ksize, strides, padding, data_format), orig_input)[1](grad)[0]


@op(v1_names="tf.raw_ops.AvgPoolGrad", type="AvgPoolGrad", tensors="orig_input_shape grad", shapes="orig_input_shape")
def avg_pool_grad(
    orig_input_shape: Any, grad: Any, ksize: Any, strides: Any, padding: Any, data_format: str = "NHWC"
) -> Any:
    """The derivative by what the mean of each window was taken of."""
    zeros = jnp.zeros(sizes_of(orig_input_shape, "the shape of images"), grad.dtype)
    return jax.vjp(lambda x: avg_pool(x, ksize, strides, padding, data_format), zeros)[1](grad)[0]
