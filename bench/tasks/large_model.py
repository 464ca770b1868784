"""A model of millions of float32 whose loss costs next to nothing, for `bench.checkpoint`; it needs only JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

LEARNING_RATE = 0.001
BYTES_PER_PARAM = 12
"""Of float32 in a checkpoint: the param, and the two moments of Adam."""


def shapes(millions: int) -> dict[str, tuple[int, ...]]:
    """Return the variables: an embedding of four fifths of all, and two dense layers of what is left."""
    return {
        "embedding": (8_000 * millions, 100),
        "hidden": (1_000, 150 * millions),
        "output": (500, 100 * millions),
    }


def init(key: jax.Array, millions: int) -> dict[str, jax.Array]:
    """Make the params: random, so that no file system and no compression finds anything to save."""
    wanted = shapes(millions)
    keys = dict(zip(wanted, jax.random.split(key, len(wanted)), strict=True))
    return {name: jax.random.normal(keys[name], shape) for name, shape in wanted.items()}


def loss(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    """Half of the sum of all squares, times the mean of the batch: its gradient touches every param.

    Args:
      params: as `init` makes them.
      batch: float32[n].
    """
    return batch.mean() * sum(((leaf * leaf).sum() for leaf in params.values()), jnp.float32(0)) / 2


def touch_memory(millions: int) -> None:
    """Use and free three times the memory of a checkpoint, just before something is measured.

    A virtual machine gives free memory back to its host; to get 240 MB again took 1.0 s, where touching them takes
    0.05 s otherwise. It hits one case and not another, by chance.
    """
    room = np.empty(3 * BYTES_PER_PARAM * millions * 1_000_000, np.uint8)
    room[::4096] = 1
