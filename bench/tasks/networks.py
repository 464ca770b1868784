"""The networks of `bench.allreduce` in JAX, for trainband and for bare JAX: pure functions of a pytree of params."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bench.peers.steps import CHANNELS, CLASSES, HIDDEN

_GLOROT = jax.nn.initializers.glorot_uniform()
_STRIDES = (2, 2)


@dataclass(frozen=True, slots=True)
class Network:
    """One network.

    Attributes:
      init: gives the params, from a random key.
      logits: gives float32[batch, 10] from the params and a batch of images.
    """

    init: Callable[[jax.Array], Any]
    logits: Callable[[Any, Any], Any]

    def loss(self, params: Any, batch: Any) -> Any:
        """Softmax cross entropy, the mean over the batch."""
        images, labels = batch
        return optax.softmax_cross_entropy_with_integer_labels(self.logits(params, images), labels).mean()


def _init_mlp(key: jax.Array) -> Any:
    hidden, output = jax.random.split(key)
    return {"hidden": _layer(hidden, (784, HIDDEN)), "output": _layer(output, (HIDDEN, CLASSES))}


def _mlp(params: Any, images: Any) -> Any:
    hidden = jax.nn.relu(images @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return hidden @ params["output"]["kernel"] + params["output"]["bias"]


def _init_convnet(key: jax.Array) -> Any:
    first, second, output = jax.random.split(key, 3)
    return {
        "first": _layer(first, (3, 3, 1, CHANNELS[0])),
        "second": _layer(second, (3, 3, *CHANNELS)),
        "output": _layer(output, (7 * 7 * CHANNELS[1], CLASSES)),
    }


def _convnet(params: Any, images: Any) -> Any:
    for name in ("first", "second"):
        kernel = params[name]["kernel"]
        images = jax.lax.conv_general_dilated(
            images, kernel, _STRIDES, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        images = jax.nn.relu(images + params[name]["bias"])
    rows = images.reshape(len(images), -1)
    return rows @ params["output"]["kernel"] + params["output"]["bias"]


def _layer(key: jax.Array, shape: tuple[int, ...]) -> Any:
    return {"kernel": _GLOROT(key, shape, jnp.float32), "bias": jnp.zeros(shape[-1])}


NETWORKS = {"mlp": Network(_init_mlp, _mlp), "convnet": Network(_init_convnet, _convnet)}
