"""Which library Keras computes with, by the environment variable `KERAS_BACKEND`."""

from __future__ import annotations

import os

VARIABLE = "KERAS_BACKEND"


def prefer_jax() -> None:
    """Has Keras compute with JAX, unless the environment names another library. Call it before Keras is imported."""
    os.environ.setdefault(VARIABLE, "jax")
