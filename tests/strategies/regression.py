"""A small regression that every strategy can train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from trainband.strategies import Model


def init(key: jax.Array) -> Any:
    """Two layers, enough rows to be sliced."""
    first, second = jax.random.split(key)
    return {
        "hidden": {"kernel": 0.5 * jax.random.normal(first, (6, 8)), "bias": jnp.zeros(8)},
        "out": {"kernel": 0.5 * jax.random.normal(second, (8, 1)), "bias": jnp.zeros(1)},
    }


def loss(params: Any, batch: Any) -> Any:
    """Mean squared error, and a metric."""
    x, y = batch
    hidden = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    error = (hidden @ params["out"]["kernel"] + params["out"]["bias"])[:, 0] - y
    return (error**2).mean(), {"worst": jnp.abs(error).max()}


def batches(count: int, size: int = 16, seed: int = 0) -> Iterator[Any]:
    """The same ones each time."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        x = generator.normal(size=(size, 6)).astype(np.float32)
        yield x, np.sin(x.sum(axis=1)).astype(np.float32)


def model(optimizer: Any = None, **changes: Any) -> Model:
    """The regression under Adam."""
    return Model(**{"init": init, "loss": loss, "optimizer": optimizer or optax.adam(1e-2), **changes})


def by_hand(optimizer: Any, steps: int, seed: int = 0) -> tuple[Any, list[float]]:
    """The loop that a user of optax writes: the params at the end, and the losses on the way."""
    params = init(jax.random.key(seed))
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        (value, _), gradient = jax.value_and_grad(loss, has_aux=True)(params, batch)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    losses = []
    for batch in batches(steps):
        params, state, value = step(params, state, batch)
        losses.append(float(value))
    return params, losses
