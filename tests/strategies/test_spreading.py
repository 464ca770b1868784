"""Batches on the devices of a mesh."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from trainband.strategies.spreading import Spreader


@pytest.fixture
def spreader(monkeypatch: pytest.MonkeyPatch) -> Spreader:
    """That of a process which has one of the mesh's devices, and is one of several."""
    made = Spreader(Mesh(np.array(jax.devices()[:1]), ("data",)), ("data",), "refuse", "worker:0")
    monkeypatch.setattr(made, "_processes", 2)
    return made


def test_an_array_that_is_on_the_device_is_not_copied(spreader: Spreader) -> None:
    there = jax.device_put(np.arange(6.0, dtype=np.float32).reshape(3, 2), jax.devices()[0])
    placed = spreader(there).batch
    assert placed.addressable_data(0).unsafe_buffer_pointer() == there.unsafe_buffer_pointer()
    np.testing.assert_array_equal(placed.addressable_data(0), there)


def test_what_the_caller_does_with_his_array_later_does_not_matter(spreader: Spreader) -> None:
    array = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    placed = spreader(array).batch
    array[:] = 0.0
    np.testing.assert_array_equal(placed.addressable_data(0), np.arange(6.0).reshape(3, 2))
