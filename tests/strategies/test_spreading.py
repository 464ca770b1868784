"""Batches on the devices of a mesh."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from numpy.typing import NDArray

from trainband.strategies import OneDevice
from trainband.strategies.spreading import Spreader
from trainband.train.trainer import Trainer


@pytest.fixture(params=[1, 2])
def spreader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Spreader:
    """That of a process which has one of the mesh's devices, alone or as one of several."""
    made = Spreader(Mesh(np.array(jax.devices()[:1]), ("data",)), ("data",), "refuse", "worker:0")
    monkeypatch.setattr(made, "_processes", request.param)
    return made


def aligned(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """A copy in memory that JAX would use as it is."""
    raw = np.empty(values.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    array = raw[start : start + values.nbytes].view(np.float32).reshape(values.shape)
    array[:] = values
    return array


def test_an_array_that_is_on_the_device_is_not_copied(spreader: Spreader) -> None:
    there = jax.device_put(np.arange(6.0, dtype=np.float32).reshape(3, 2), jax.devices()[0])
    placed = spreader(there).batch
    assert placed.addressable_data(0).unsafe_buffer_pointer() == there.unsafe_buffer_pointer()
    np.testing.assert_array_equal(placed.addressable_data(0), there)


def test_what_the_caller_does_with_his_array_later_does_not_matter(spreader: Spreader) -> None:
    array = aligned(np.arange(6.0, dtype=np.float32).reshape(3, 2))
    placed = spreader(array).batch
    array[:] = 0.0
    np.testing.assert_array_equal(placed.addressable_data(0), np.arange(6.0).reshape(3, 2))


def test_a_step_under_way_does_not_see_the_next_batch() -> None:
    """A loader may write each batch into the same array."""
    array = aligned(np.ones(4096, np.float32))
    slow = Trainer(
        init=lambda _: {"w": jnp.zeros(()), "m": jnp.ones((600, 600))},
        loss=lambda params, batch: params["w"] * batch.sum() + 0.0 * _long(params["m"]),
        optimizer=optax.sgd(1.0),
        strategy=OneDevice("cpu"),
        console=False,
    )

    def batches() -> Iterator[NDArray[np.float32]]:
        for number in range(3):
            array[:] = number
            yield array

    slow.fit(batches())
    assert float(slow.params["w"]) == -4096.0 * (0 + 1 + 2)
    slow.close()


def _long(matrix: jax.Array) -> jax.Array:
    product: jax.Array = jax.lax.fori_loop(0, 30, lambda _, m: jnp.tanh(m @ matrix), jax.lax.stop_gradient(matrix))
    return product.sum()
