"""Learning rates that change with the global step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert, record_tensor

Formula = Callable[..., Any]


def _decayed(name: str | None, title: str, formula: Formula, rate: Any, step: Any, *more: Any) -> Tensor:
    """Records `formula(rate, step, *more)`, everything in the learning rate's dtype."""
    first = convert(rate)
    inputs = [first, convert(step), *(convert(one) for one in more)]

    def compute(value: Any, *rest: Any) -> Any:
        return formula(value, *(jnp.asarray(one).astype(value.dtype) for one in rest))

    return record_tensor(title, compute, inputs, name=name or title)


def _needs_step(global_step: Any, what: str) -> None:
    if global_step is None:
        raise ValueError(f"global_step is required for {what}.")


def exponential_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """learning_rate decay_rate ^ (step / decay_steps)."""
    _needs_step(global_step, "exponential_decay")

    def formula(rate: Any, step: Any, steps: Any, base: Any) -> Any:
        part = step / steps
        return rate * jnp.power(base, jnp.floor(part) if staircase else part)

    return _decayed(name, "ExponentialDecay", formula, learning_rate, global_step, decay_steps, decay_rate)


def natural_exp_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """learning_rate exp(-decay_rate step / decay_steps)."""
    _needs_step(global_step, "natural_exp_decay")

    def formula(rate: Any, step: Any, steps: Any, speed: Any) -> Any:
        part = step / steps
        return rate * jnp.exp(-speed * (jnp.floor(part) if staircase else part))

    return _decayed(name, "NaturalExpDecay", formula, learning_rate, global_step, decay_steps, decay_rate)


def inverse_time_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """learning_rate / (1 + decay_rate step / decay_steps)."""
    _needs_step(global_step, "inverse_time_decay")

    def formula(rate: Any, step: Any, steps: Any, speed: Any) -> Any:
        part = step / steps
        return rate / (1 + speed * (jnp.floor(part) if staircase else part))

    return _decayed(name, "InverseTimeDecay", formula, learning_rate, global_step, decay_steps, decay_rate)


def polynomial_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    end_learning_rate: Any = 0.0001,
    power: Any = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Tensor:
    """From one rate to another, by a power of the part of the way that is left."""
    _needs_step(global_step, "polynomial_decay")

    def formula(rate: Any, step: Any, steps: Any, end: Any, exponent: Any) -> Any:
        if cycle:
            steps = steps * jnp.where(step == 0, 1.0, jnp.ceil(step / steps)).astype(rate.dtype)
        else:
            step = jnp.minimum(step, steps)
        return (rate - end) * jnp.power(1 - step / steps, exponent) + end

    return _decayed(name, "PolynomialDecay", formula, learning_rate, global_step, decay_steps, end_learning_rate, power)


def cosine_decay(
    learning_rate: Any, global_step: Any, decay_steps: Any, alpha: float = 0.0, name: str | None = None
) -> Tensor:
    """Along half a cosine, down to `alpha` times the rate."""
    _needs_step(global_step, "cosine_decay")

    def formula(rate: Any, step: Any, steps: Any) -> Any:
        part = jnp.minimum(step, steps) / steps
        return rate * ((1 - alpha) * 0.5 * (1 + jnp.cos(math.pi * part)) + alpha)

    return _decayed(name, "CosineDecay", formula, learning_rate, global_step, decay_steps)


def piecewise_constant(x: Any, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None) -> Tensor:
    """The value for the piece that `x` lies in; a boundary belongs to the piece before it.

    Raises:
      ValueError: there is not one value more than there are boundaries.
    """
    if len(boundaries) != len(values) - 1:
        raise ValueError("The length of boundaries should be 1 less than the length of values")
    kind = convert(values[0]).dtype.numpy

    def compute(step: Any) -> Any:
        piece = jnp.sum(jnp.asarray(step) > jnp.asarray(np.asarray(boundaries)).astype(jnp.result_type(step)))
        return jnp.asarray(np.asarray(values, kind))[piece]

    return record_tensor("PiecewiseConstant", compute, [convert(x)], name=name)
