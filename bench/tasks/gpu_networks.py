"""The networks of `bench.gpu`: dense layers with ReLU between them, and batches of random images."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

LEARNING_RATE = 0.001
BATCHES = 20


@dataclass(frozen=True, slots=True)
class Network:
    """One network.

    Attributes:
      widths: of the layers, from the pixels to the classes.
      batch_size: examples in a batch of one device.
    """

    widths: tuple[int, ...]
    batch_size: int

    def init(self, key: jax.Array) -> Any:
        """Make the params, one layer after the other."""
        glorot = jax.nn.initializers.glorot_uniform()
        keys = jax.random.split(key, len(self.widths) - 1)
        return [
            {"kernel": glorot(one, shape, jnp.float32), "bias": jnp.zeros(shape[1])}
            for one, shape in zip(keys, pairwise(self.widths), strict=True)
        ]

    def loss(self, params: Any, batch: Any) -> Any:
        """Softmax cross entropy, the mean over the batch."""
        images, labels = batch
        for layer in params[:-1]:
            images = jax.nn.relu(images @ layer["kernel"] + layer["bias"])
        logits = images @ params[-1]["kernel"] + params[-1]["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def batches(self, devices: int = 1) -> list[Any]:
        """Make the batches for this many devices: (float32[examples, pixels], int32[examples]) each."""
        generator = np.random.default_rng(0)
        size = self.batch_size * devices
        return [
            (
                generator.random((size, self.widths[0]), np.float32),
                generator.integers(self.widths[-1], size=size, dtype=np.int32),
            )
            for _ in range(BATCHES)
        ]


NETWORKS = {"large": Network((784, 2048, 2048, 10), 512), "mnist": Network((784, 100, 10), 100)}
