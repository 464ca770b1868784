"""The model of `examples/mnist.py`, as a function to serve."""

from __future__ import annotations

from typing import Any

import jax


def predict(params: dict[str, Any], images: jax.Array) -> jax.Array:
    """The logits of images of 784 numbers."""
    hidden = jax.nn.relu(images @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    logits: jax.Array = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    return logits
