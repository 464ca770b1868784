"""Learning rates that change with the global step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError
from trainband.compat.ops.dtypes import array_of
from trainband.compat.ops.table import op


def _as_rate(rate: Any, name: str, global_step: Any, *others: Any) -> list[Any]:
    """The step and other numbers in the learning rate's dtype."""
    if global_step is None:
        raise ArgumentError(f"global_step is required for {name}.")
    return [jnp.asarray(one).astype(rate.dtype) for one in (global_step, *others)]


_NUMBERS = "learning_rate global_step decay_steps decay_rate"


@op(v1_names="tf.train.exponential_decay", type="ExponentialDecay", tensors=_NUMBERS, optional="global_step")
def exponential_decay(
    learning_rate: Any, global_step: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False
) -> Any:
    """learning_rate decay_rate ^ (step / decay_steps)."""
    step, steps, base = _as_rate(learning_rate, "exponential_decay", global_step, decay_steps, decay_rate)
    part = step / steps
    return learning_rate * jnp.power(base, jnp.floor(part) if staircase else part)


@op(v1_names="tf.train.natural_exp_decay", type="NaturalExpDecay", tensors=_NUMBERS, optional="global_step")
def natural_exp_decay(
    learning_rate: Any, global_step: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False
) -> Any:
    """learning_rate exp(-decay_rate step / decay_steps)."""
    step, steps, speed = _as_rate(learning_rate, "natural_exp_decay", global_step, decay_steps, decay_rate)
    part = step / steps
    return learning_rate * jnp.exp(-speed * (jnp.floor(part) if staircase else part))


@op(v1_names="tf.train.inverse_time_decay", type="InverseTimeDecay", tensors=_NUMBERS, optional="global_step")
def inverse_time_decay(
    learning_rate: Any, global_step: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False
) -> Any:
    """learning_rate / (1 + decay_rate step / decay_steps)."""
    step, steps, speed = _as_rate(learning_rate, "inverse_time_decay", global_step, decay_steps, decay_rate)
    part = step / steps
    return learning_rate / (1 + speed * (jnp.floor(part) if staircase else part))


@op(
    v1_names="tf.train.polynomial_decay",
    type="PolynomialDecay",
    tensors="learning_rate global_step decay_steps end_learning_rate power",
    optional="global_step",
)
def polynomial_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    end_learning_rate: Any = 0.0001,
    power: Any = 1.0,
    cycle: bool = False,
) -> Any:
    """From one rate to another, by a power of the part of the way that is left."""
    step, steps, end, exponent = _as_rate(
        learning_rate, "polynomial_decay", global_step, decay_steps, end_learning_rate, power
    )
    if cycle:
        steps = steps * jnp.where(step == 0, 1.0, jnp.ceil(step / steps)).astype(learning_rate.dtype)
    else:
        step = jnp.minimum(step, steps)
    return (learning_rate - end) * jnp.power(1 - step / steps, exponent) + end


@op(
    v1_names="tf.train.cosine_decay",
    type="CosineDecay",
    tensors="learning_rate global_step decay_steps",
    optional="global_step",
)
def cosine_decay(learning_rate: Any, global_step: Any, decay_steps: Any, alpha: Any = 0.0) -> Any:
    """Along half a cosine, down to `alpha` times the rate."""
    step, steps = _as_rate(learning_rate, "cosine_decay", global_step, decay_steps)
    part = jnp.minimum(step, steps) / steps
    return learning_rate * ((1 - alpha) * 0.5 * (1 + jnp.cos(math.pi * part)) + alpha)


@op(
    v1_names="tf.train.cosine_decay_restarts",
    type="SGDRDecay",
    tensors="learning_rate global_step first_decay_steps t_mul m_mul",
    optional="global_step",
    like={"t_mul": "learning_rate", "m_mul": "learning_rate"},
)
def cosine_decay_restarts(
    learning_rate: Any,
    global_step: Any,
    first_decay_steps: Any,
    t_mul: Any = 2.0,
    m_mul: Any = 1.0,
    alpha: Any = 0.0,
) -> Any:
    """Along half a cosine again and again, each `t_mul` times as long and from `m_mul` times as high as the last."""
    step, first = _as_rate(learning_rate, "cosine_decay_restarts", global_step, first_decay_steps)
    part = step / first
    grows = t_mul != 1
    ratio = jnp.where(grows, t_mul, 2)
    turns = jnp.floor(jnp.log(1 - part * (1 - ratio)) / jnp.log(ratio))
    before = (1 - ratio**turns) / (1 - ratio)
    turn = jnp.where(grows, turns, jnp.floor(part))
    rest = jnp.where(grows, (part - before) / ratio**turns, part - jnp.floor(part))
    height = 0.5 * m_mul**turn * (1 + jnp.cos(math.pi * rest))
    return learning_rate * ((1 - alpha) * height + alpha)


@op(
    v1_names="tf.train.linear_cosine_decay",
    type="LinearCosineDecay",
    tensors="learning_rate global_step decay_steps",
    optional="global_step",
)
def linear_cosine_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    num_periods: Any = 0.5,
    alpha: Any = 0.0,
    beta: Any = 0.001,
) -> Any:
    """Along a cosine that falls in a straight line."""
    step, steps = _as_rate(learning_rate, "linear_cosine_decay", global_step, decay_steps)
    part = jnp.minimum(step, steps) / steps
    wave = 0.5 * (1 + jnp.cos(2 * math.pi * num_periods * part))
    return learning_rate * ((alpha + 1 - part) * wave + beta)


@op(
    v1_names="tf.train.noisy_linear_cosine_decay",
    type="NoisyLinearCosineDecay",
    tensors="learning_rate global_step decay_steps",
    optional="global_step",
    random=True,
)
def noisy_linear_cosine_decay(
    key: Any,
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    initial_variance: Any = 1.0,
    variance_decay: Any = 0.55,
    num_periods: Any = 0.5,
    alpha: Any = 0.0,
    beta: Any = 0.001,
) -> Any:
    """Along a cosine that falls in a noisy straight line; the variance of the noise falls with the steps."""
    step, steps = _as_rate(learning_rate, "noisy_linear_cosine_decay", global_step, decay_steps)
    step = jnp.minimum(step, steps)
    noise = jax.random.normal(key, (), learning_rate.dtype) * jnp.sqrt(initial_variance / (1 + step) ** variance_decay)
    wave = 0.5 * (1 + jnp.cos(2 * math.pi * num_periods * step / steps))
    return learning_rate * ((alpha + (steps - step) / steps + noise) * wave + beta)


@op(v1_names="tf.train.piecewise_constant tf.train.piecewise_constant_decay", type="PiecewiseConstant", tensors="x")
def piecewise_constant(x: Any, boundaries: Sequence[Any], values: Sequence[Any]) -> Any:
    """The value for the piece that `x` lies in; a boundary belongs to the piece before it."""
    if len(boundaries) != len(values) - 1:
        raise ArgumentError("The length of boundaries should be 1 less than the length of values")
    edges, heights = [array_of(one) for one in boundaries], [array_of(one) for one in values]
    kind = jnp.result_type(x)
    for edge in edges:
        if edge.dtype != kind and not (edge.dtype == np.int32 and kind == np.int64):
            raise ArgumentError(f"Boundaries ({edge.dtype}) must have the same dtype as x ({kind}).")
    if any(one.dtype != heights[0].dtype for one in heights):
        raise ArgumentError(f"Values must have elements all with the same dtype ({[one.dtype for one in heights]}).")
    piece = jnp.sum(jnp.asarray(x) > jnp.asarray(np.asarray(edges)).astype(kind))
    return jnp.asarray(np.asarray(heights))[piece]
