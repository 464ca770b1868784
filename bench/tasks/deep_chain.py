"""A chain of dense layers of any number and size, for `bench.real_sizes`; it needs only JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

BATCH = 16


def init(key: jax.Array, layers: int, width: int) -> dict[str, dict[str, jax.Array]]:
    """Makes the params: for each layer a `kernel` of width x width, as Flax's `Dense` draws it, and a `bias`."""
    draw = jax.nn.initializers.lecun_normal()
    keys = jax.random.split(key, layers)
    return {
        f"layer {number:04}": {"kernel": draw(keys[number], (width, width)), "bias": jnp.zeros(width)}
        for number in range(layers)
    }


def loss(params: dict[str, dict[str, jax.Array]], batch: jax.Array) -> jax.Array:
    """The mean square of what residual layers make of float32[batch, width]."""
    values = batch
    for layer in params.values():
        values = values + 0.1 * jnp.tanh(values @ layer["kernel"] + layer["bias"])
    return (values * values).mean()


def batch_of(width: int) -> np.ndarray[Any, Any]:
    """The same examples for all."""
    return np.random.default_rng(0).standard_normal((BATCH, width)).astype(np.float32)


OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.01),
    "adam": lambda: optax.adam(0.001),
}
