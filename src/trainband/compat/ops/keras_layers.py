"""What layers of `tf.keras` compute that no operation of TensorFlow does in one piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from trainband.compat.ops.table import op

Step = Callable[[Any, tuple[Any, ...]], tuple[Any, tuple[Any, ...]]]

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: x,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "hard_sigmoid": lambda x: jnp.clip(0.2 * x + 0.5, 0, 1),
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "softplus": jax.nn.softplus,
    "softsign": jax.nn.soft_sign,
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "exponential": jnp.exp,
    "swish": jax.nn.swish,
}


def _simple(kernel: Any, recurrent: Any, bias: Any, activation: Any, gate: Any) -> Step:
    del gate

    def step(x: Any, state: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        new = activation(x @ kernel + bias + state[0] @ recurrent)
        return new, (new,)

    return step


def _gru(kernel: Any, recurrent: Any, bias: Any, activation: Any, gate: Any) -> Step:
    """The reset gate comes before the product; with a bias of two rows, after it, and the second row is added to it."""
    after = bias.ndim == 2
    first, second = (bias[0], bias[1]) if after else (bias, jnp.zeros_like(bias))

    def step(x: Any, state: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        (h,) = state
        size = h.shape[-1]
        inputs = x @ kernel + first
        inner = h @ recurrent[:, : 2 * size] + second[: 2 * size]
        update = gate(inputs[:, :size] + inner[:, :size])
        reset = gate(inputs[:, size : 2 * size] + inner[:, size:])
        own = recurrent[:, 2 * size :]
        past = reset * (h @ own + second[2 * size :]) if after else (reset * h) @ own
        new = update * h + (1 - update) * activation(inputs[:, 2 * size :] + past)
        return new, (new,)

    return step


def _lstm(kernel: Any, recurrent: Any, bias: Any, activation: Any, gate: Any) -> Step:
    def step(x: Any, state: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        h, c = state
        i, f, new, o = jnp.split(x @ kernel + bias + h @ recurrent, 4, -1)
        c = gate(f) * c + gate(i) * activation(new)
        h = gate(o) * activation(c)
        return h, (h, c)

    return step


_STEPS = {"simple": _simple, "gru": _gru, "lstm": _lstm}


@op(
    "",
    type="KerasRecurrence",
    tensors="inputs kernel recurrent bias mask",
    optional="mask",
    lists="states",
    outputs=lambda states, **_: 1 + len(states),
)
def keras_recurrence(
    inputs: Any,
    kernel: Any,
    recurrent: Any,
    bias: Any,
    states: Sequence[Any],
    mask: Any = None,
    kind: str = "lstm",
    activation: str = "tanh",
    gate: str = "hard_sigmoid",
    backwards: bool = False,
) -> Any:
    """The outputs [batch, time, units] of all steps of a recurrent layer, and its last states.

    Where the mask [batch, time] is false, the outputs and states of the step before stay.
    """
    step = _STEPS[kind](kernel, recurrent, bias, _ACTIVATIONS[activation], _ACTIVATIONS[gate])
    steps = jnp.swapaxes(jnp.asarray(inputs), 0, 1)
    counts = None if mask is None else jnp.swapaxes(jnp.asarray(mask), 0, 1)[..., None] != 0

    def one(carried: Any, given: Any) -> tuple[Any, Any]:
        state, last = carried
        x, counted = given
        output, new = step(x, state)
        if counted is not None:
            output = jnp.where(counted, output, last)
            new = tuple(jnp.where(counted, a, b) for a, b in zip(new, state, strict=True))
        return (new, output), output

    first = tuple(jnp.asarray(state) for state in states)
    (last, _), outputs = jax.lax.scan(one, (first, jnp.zeros_like(first[0])), (steps, counts), reverse=backwards)
    if backwards:
        outputs = outputs[::-1]
    return [jnp.swapaxes(outputs, 0, 1), *last]


@op("", type="Padded", tensors="x")
def padded(x: Any, widths: Sequence[Sequence[int]]) -> Any:
    """Zeros before and after, for each axis."""
    return jnp.pad(x, [tuple(width) for width in widths])


@op("", type="Cropped", tensors="x")
def cropped(x: Any, widths: Sequence[Sequence[int]]) -> Any:
    """Without the first and last elements, for each axis."""
    return x[tuple(slice(a, x.shape[axis] - b) for axis, (a, b) in enumerate(widths))]


@op("", type="Repeated", tensors="x")
def repeated(x: Any, times: Sequence[int]) -> Any:
    """Each element several times, for each axis."""
    for axis, count in enumerate(times):
        if count != 1:
            x = jnp.repeat(x, count, axis)
    return x


@op("", type="Pool", tensors="x mask", optional="mask")
def over_all(x: Any, mask: Any = None, axes: Sequence[int] = (1,), largest: bool = False) -> Any:
    """The largest of all places, or their mean, of those that count."""
    axes = tuple(axes)
    if largest:
        return jnp.max(x, axes)
    if mask is None:
        return jnp.mean(x, axes)
    counts = (jnp.asarray(mask) != 0).astype(x.dtype)[..., None]
    return jnp.sum(x * counts, axes) / jnp.sum(counts, axes)


@op("", type="Dot", tensors="x y")
def dotted(x: Any, y: Any, axes: Sequence[int], normalize: bool = False) -> Any:
    """The products of the examples of two tensors, summed along an axis of each."""
    a, b = (axis % one.ndim for axis, one in zip(axes, (x, y), strict=True))
    if normalize:
        x, y = (
            one * jax.lax.rsqrt(jnp.maximum(jnp.sum(one * one, axis, keepdims=True), 1e-12))
            for one, axis in ((x, a), (y, b))
        )
    found = jax.vmap(lambda one, other: jnp.tensordot(one, other, ((a - 1,), (b - 1,))))(x, y)
    return found[:, None] if found.ndim == 1 else found
