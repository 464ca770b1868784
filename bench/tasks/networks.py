"""The networks of `bench.allreduce` in JAX, for trainband and for bare JAX.

All are pure functions of a pytree of params except ResNet-18, a module of Flax NNX with a state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from bench.peers.steps import CHANNELS, CLASSES, HIDDEN
from bench.tasks import gpt2
from bench.tasks.resnet import ResNet

_GLOROT = jax.nn.initializers.glorot_uniform()
_STRIDES = (2, 2)


@dataclass(frozen=True, slots=True)
class Network:
    """One network.

    Attributes:
      init: gives the params, from a random key.
      logits: gives float32[..., classes] from the params and a batch of inputs.
    """

    init: Callable[[jax.Array], Any]
    logits: Callable[[Any, Any], Any]

    def loss(self, params: Any, batch: Any) -> Any:
        """Softmax cross entropy, the mean over the batch."""
        inputs, labels = batch
        return _cross_entropy(self.logits(params, inputs), labels)

    def start(self) -> tuple[Any, Any]:
        """Return (params, state)."""
        return self.init(jax.random.key(0)), ()

    def train(self, params: Any, state: Any, batch: Any) -> tuple[Any, Any]:
        """Return (loss, the state after it)."""
        return self.loss(params, batch), state

    def evaluate(self, params: Any, state: Any, batch: Any) -> Any:
        """Return the loss that changes nothing."""
        del state
        return self.loss(params, batch)


@dataclass(frozen=True, slots=True)
class ModuleNetwork:
    """A network that is a module of Flax NNX, with the methods that bare JAX needs of a `Network`.

    Attributes:
      make: gives the module.
    """

    make: Callable[[nnx.Rngs], nnx.Module]

    def module(self) -> Any:
        """Make the module."""
        return self.make(nnx.Rngs(0))

    @staticmethod
    def loss(model: Any, batch: Any) -> Any:
        """Softmax cross entropy, the mean over the batch."""
        images, labels = batch
        return _cross_entropy(model(images), labels)

    def start(self) -> tuple[Any, Any]:
        """Return (params, state)."""
        split: Any = nnx.split(self.module(), nnx.Param, ...)
        return split[1], split[2]

    def train(self, params: Any, state: Any, batch: Any) -> tuple[Any, Any]:
        """Return (loss, the state after it)."""
        model = self._merged(params, state)
        loss = self.loss(model, batch)
        split: Any = nnx.split(model, nnx.Param, ...)
        return loss, split[2]

    def evaluate(self, params: Any, state: Any, batch: Any) -> Any:
        """Return the loss with the running averages, which changes nothing."""
        model = self._merged(params, state)
        model.eval()
        return self.loss(model, batch)

    def _merged(self, params: Any, state: Any) -> Any:
        return nnx.merge(nnx.graphdef(nnx.eval_shape(self.module)), params, state, copy=True)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


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


NETWORKS: dict[str, Network | ModuleNetwork] = {
    "mlp": Network(_init_mlp, _mlp),
    "convnet": Network(_init_convnet, _convnet),
    "resnet18": ModuleNetwork(ResNet),
    "gpt2": Network(gpt2.init, gpt2.logits),
}
