"""The library that Keras computes with, set by the environment variable `KERAS_BACKEND`."""

from __future__ import annotations

import os

VARIABLE = "KERAS_BACKEND"


def prefer_jax() -> None:
    """Makes Keras compute with JAX unless the environment names another library. Call it before importing Keras."""
    os.environ.setdefault(VARIABLE, "jax")


def replace_tensorflow() -> bool:
    """Makes Keras compute with JAX if the environment names TensorFlow. Returns whether it does."""
    is_tensorflow = os.environ.get(VARIABLE) == "tensorflow"
    if is_tensorflow:
        os.environ[VARIABLE] = "jax"
    return is_tensorflow
