"""Batches on the devices of a mesh."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from numpy.typing import NDArray

from trainband.errors import ClusterError, DataError
from trainband.model.batch import ShardedBatch, examples_in, owned
from trainband.model.mesh_context import on_mesh
from trainband.runtime.aligned import aligned_empty
from trainband.spmd.batch_sharding import BatchSharding, own_part
from trainband.strategies import OneDevice
from trainband.train.trainer import Trainer


@pytest.fixture(params=[1, 2])
def sharding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> BatchSharding:
    """Returns the sharding of a process with one of the mesh's devices, alone or one of several."""
    made = BatchSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), ("data",), "refuse", "worker:0")
    monkeypatch.setattr(made, "_processes", request.param)
    return made


def aligned(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns a copy in memory that JAX would use without copying."""
    array = aligned_empty(values.shape, values.dtype)
    array[:] = values
    return array


def test_an_array_that_is_on_the_device_is_not_copied(sharding: BatchSharding) -> None:
    there = jax.device_put(np.arange(6.0, dtype=np.float32).reshape(3, 2), jax.devices()[0])
    placed = sharding(there).batch
    assert placed.addressable_data(0).unsafe_buffer_pointer() == there.unsafe_buffer_pointer()
    np.testing.assert_array_equal(placed.addressable_data(0), there)


def test_what_is_kept_on_the_device_is_sharded_once(sharding: BatchSharding) -> None:
    images = jax.device_put(np.arange(6.0, dtype=np.float32).reshape(3, 2), jax.devices()[0])
    labels = jax.device_put(np.arange(3, dtype=np.int32), jax.devices()[0])
    once = sharding((images, labels))
    assert sharding((images, labels)) is once
    swapped = sharding((labels, images)).batch
    np.testing.assert_array_equal(swapped[0].addressable_data(0), labels)
    named = sharding({"images": images, "labels": labels}).batch
    np.testing.assert_array_equal(named["labels"].addressable_data(0), labels)
    assert len(sharding._known) == 2  # noqa: SLF001 - the arrays of the first and the last are the same
    kept = weakref.ref(once.batch[0])
    del once, swapped, named, images, labels
    gc.collect()
    assert not sharding._known  # noqa: SLF001
    assert kept() is None, "the memory of a batch that is no more is held"


def test_what_lies_on_the_mesh_already_is_not_kept_alive(sharding: BatchSharding) -> None:
    batch = jax.device_put(np.ones((3, 2), np.float32), sharding._split)  # noqa: SLF001
    sharding(batch)
    kept = weakref.ref(batch)
    del batch
    gc.collect()
    assert kept() is None
    assert not sharding._known  # noqa: SLF001


def test_what_fills_a_batch_up_is_taken_out_again() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    batch = ShardedBatch((np.arange(8), np.float32(7.0)), rows=(3, 2))
    rows, scalar = jax.jit(on_mesh(ShardedBatch.unpadded, mesh))(batch)
    assert rows.tolist() == [0, 1, 2, 4, 5]
    assert scalar == 7.0
    assert examples_in(batch) == 5


def test_a_known_batch_still_has_to_be_as_large_as_the_others() -> None:
    made = BatchSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), ("data",), "refuse", "worker:0")
    made._processes = 2  # noqa: SLF001
    large, small = (jax.device_put(np.ones((rows, 2), np.float32), jax.devices()[0]) for rows in (4, 3))
    made(large)
    made.expect(3)
    made(small)
    with pytest.raises(DataError, match="a batch has 4 examples, but the first one had 3"):
        made(large)


def test_what_was_deleted_is_not_given_again(sharding: BatchSharding) -> None:
    array = jax.device_put(np.ones((3, 2), np.float32), jax.devices()[0])
    sharding(array)
    array.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        sharding(array)


def test_what_the_caller_does_with_his_array_later_does_not_matter(sharding: BatchSharding) -> None:
    array = aligned(np.arange(6.0, dtype=np.float32).reshape(3, 2))
    placed = sharding(array).batch
    array[:] = 0.0
    np.testing.assert_array_equal(placed.addressable_data(0), np.arange(6.0).reshape(3, 2))


def test_a_copy_is_computed_with_as_it_lies() -> None:
    """JAX would copy an array that is not aligned."""
    for rows in range(1, 9):
        copy = owned(np.arange(700.0 * rows, dtype=np.float32)[1:].reshape(-1, 1))
        assert jax.device_put(copy, jax.devices("cpu")[0]).unsafe_buffer_pointer() == copy.ctypes.data
        np.testing.assert_array_equal(copy.ravel(), np.arange(1, 700.0 * rows))


def test_a_masked_array_is_refused(sharding: BatchSharding) -> None:
    """The mask would be lost."""
    with pytest.raises(ValueError, match="masked arrays are not supported"):
        sharding(np.ma.masked_equal(np.eye(3, 2, dtype=np.float32), 1.0))


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


# the parts of each process's devices, and the second's share: first part, how many, which sharers
MESHES = {
    "data over all": ({0: {0, 1}, 1: {2, 3}, 2: {4, 5}}, (2, 2, (1,))),
    "model within a process": ({0: {0}, 1: {1}, 2: {2}}, (1, 1, (1,))),
    "model over two": ({0: {0}, 1: {0}, 2: {1}, 3: {1}}, (0, 1, (0, 1))),
    "model over all": ({0: {0}, 1: {0}, 2: {0}}, (0, 1, (0, 1, 2))),
}


@pytest.mark.parametrize("name", MESHES)
def test_what_a_process_brings(name: str) -> None:
    parts, expected = MESHES[name]
    assert own_part(1, parts, "worker:1") == expected


@pytest.mark.parametrize("process", [0, 1, 2])
def test_a_mesh_that_gives_a_process_parts_which_are_no_neighbours(process: int) -> None:
    """Three processes have two devices each: its first rows would be taken for those of another process."""
    words = rf"^worker:{process}: the devices of process 1 have the parts 0, 2 .* data first in the mesh"
    with pytest.raises(ClusterError, match=words):
        own_part(process, {0: {0, 1}, 1: {0, 2}, 2: {1, 2}}, f"worker:{process}")


@pytest.mark.parametrize("process", [0, 1, 2])
def test_a_mesh_in_which_processes_share_some_parts_but_not_all(process: int) -> None:
    """Three devices compute a part together, and a process has two: the rows of one batch would count twice."""
    with pytest.raises(ClusterError, match=rf"^worker:{process}: processes \d, .* share some parts .*, but not all"):
        own_part(process, {0: {0}, 1: {0, 1}, 2: {1}}, f"worker:{process}")
