"""The functions that are served: the MNIST MLP and a small convnet, of JAX alone, the same for every server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]


def mlp(params: Params, images: Any) -> Any:
    """784-512-512-10: class probabilities of images of 28 x 28."""
    hidden = images.reshape(images.shape[0], 784)
    for layer in ("first", "second"):
        hidden = jax.nn.relu(hidden @ params[layer]["kernel"] + params[layer]["bias"])
    return jax.nn.softmax(hidden @ params["output"]["kernel"] + params["output"]["bias"])


def convnet(params: Params, images: Any) -> Any:
    """Two convolutions of 3 x 3 with 16 and 32 filters, each with a pooling, then 1568-10."""
    hidden = images[..., None]
    for layer in ("first", "second"):
        hidden = jax.lax.conv_general_dilated(
            hidden, params[layer]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        hidden = jax.nn.relu(hidden + params[layer]["bias"])
        hidden = jax.lax.reduce_window(hidden, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    hidden = hidden.reshape(hidden.shape[0], 1568)
    return jax.nn.softmax(hidden @ params["output"]["kernel"] + params["output"]["bias"])


_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp": {"first": (784, 512), "second": (512, 512), "output": (512, 10)},
    "convnet": {"first": (3, 3, 1, 16), "second": (3, 3, 16, 32), "output": (1568, 10)},
}

FUNCTIONS: dict[str, Callable[[Params, Any], Any]] = {"mlp": mlp, "convnet": convnet}


def params_of(model: str) -> Params:
    """Its params, the same in every process."""
    random = np.random.default_rng(0)
    return {
        layer: {
            "kernel": (random.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32),
            "bias": np.zeros(shape[-1], np.float32),
        }
        for layer, shape in _SHAPES[model].items()
    }
