"""Keras computes with JAX here, which it must be told before anything imports it."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"
