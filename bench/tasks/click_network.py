"""The network of `bench.tables` in JAX: a factorization machine between two dense layers, like a small DLRM."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bench.peers.clicks import BOTTOM, DENSE, DIM, TOP


def init(key: jax.Array) -> dict[str, dict[str, jax.Array]]:
    """Make the params of the dense layers."""
    glorot = jax.nn.initializers.glorot_uniform()
    sizes = {"bottom": (DENSE, BOTTOM), "middle": (BOTTOM, DIM), "top": (2 * DIM, TOP), "click": (TOP, 1)}
    keys = jax.random.split(key, len(sizes))
    return {
        name: {"kernel": glorot(one, size, jnp.float32), "bias": jnp.zeros(size[1])}
        for one, (name, size) in zip(keys, sizes.items(), strict=True)
    }


def loss(params: Any, rows: jax.Array, numbers: jax.Array, clicks: jax.Array) -> Any:
    """Binary cross entropy; `rows`: (n, FEATURES, DIM)."""

    def dense(name: str, values: jax.Array) -> Any:
        return values @ params[name]["kernel"] + params[name]["bias"]

    bottom = dense("middle", jax.nn.relu(dense("bottom", numbers)))
    total = rows.sum(1) + bottom
    crossed = 0.5 * (total**2 - (rows**2).sum(1) - bottom**2)
    logits = dense("click", jax.nn.relu(dense("top", jnp.concatenate([total, crossed], 1))))[:, 0]
    return optax.sigmoid_binary_cross_entropy(logits, clicks).mean()
