"""Keras computes with JAX here, which it must be told before anything imports it."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

os.environ["KERAS_BACKEND"] = "jax"


@pytest.fixture(autouse=True)
def _keras_lets_go() -> Iterator[None]:
    """Keras's `fit` leaves the thread of its callbacks to the garbage collector when it ends with an error."""
    before = threading.active_count()
    yield
    if threading.active_count() > before:
        gc.collect()
