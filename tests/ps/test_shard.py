"""A shard: versions that never change, and memory that is used again when nobody reads it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray
from tests.ps.plans import blocks_of, plan_of

from trainband.errors import Refused
from trainband.ps.program.compiled_program import CompiledProgram
from trainband.ps.program.gradients import all_finite
from trainband.ps.shard.shard import ParamsVersion, Shard

N = 4096
"""Elements: enough that JAX aligns and keeps the buffers as they are."""


@pytest.fixture(scope="module")
def program() -> CompiledProgram:
    """SGD with a learning rate of 1: each update with a gradient of ones takes 1 off."""
    return CompiledProgram(plan_of({"w": np.zeros(N, np.float32)}, optax.sgd(1.0)).shard_optimizer(0).export(), "test")


@pytest.fixture
def shard(program: CompiledProgram) -> Shard:
    """All zeros, at version 0."""
    params = {"w": np.zeros(N, np.float32)}
    plan = plan_of(params, optax.sgd(1.0))
    fresh = Shard(plan.layout.shards[0], program)
    fresh.initialise(blocks_of(plan, params)[0])
    return fresh


def ones() -> list[NDArray[Any]]:
    return [np.ones(N, np.float32)]


def place(version: ParamsVersion) -> int:
    (block,) = version.blocks
    return int(block.unsafe_buffer_pointer())


def values(version: ParamsVersion) -> float:
    """The one value that all elements have."""
    (array,) = version.arrays()
    assert (array == array[0]).all()
    return float(array[0])


def state_of(shard: Shard) -> tuple[int, float, int]:
    """(version, value, address) of the newest params, read and let go."""
    version = shard.acquire()
    try:
        return version.number, values(version), place(version)
    finally:
        shard.release(version)


def test_updates_count_and_apply(shard: Shard) -> None:
    seen = [state_of(shard)[:2]]
    for _ in range(5):
        shard.update(ones())
        seen.append(state_of(shard)[:2])
    assert seen == [(n, -float(n)) for n in range(6)]
    assert shard.version == 5


def test_the_memory_of_the_version_before_the_last_is_used_again(shard: Shard) -> None:
    places = [state_of(shard)[2]]
    for _ in range(6):
        shard.update(ones())
        places.append(state_of(shard)[2])
    # Two buffers in turn: version n lies where n-2 lay.
    assert places[2:] == places[:-2]
    assert places[0] != places[1]


def test_a_version_that_somebody_reads_keeps_its_memory_and_its_values(shard: Shard) -> None:
    shard.update(ones())
    reading = shard.acquire()
    where, arrays = place(reading), reading.arrays()
    for _ in range(5):
        shard.update(ones())
        assert state_of(shard)[2] != where
        assert values(reading) == -1.0
        assert (arrays[0] == -1.0).all()
    assert state_of(shard)[:2] == (6, -6.0)
    del arrays
    shard.release(reading)
    shard.update(ones())
    assert state_of(shard)[:2] == (7, -7.0)


def test_large_params_are_overwritten_only_while_nobody_reads_them(program: CompiledProgram) -> None:
    program.in_place = True
    plan = plan_of({"w": np.zeros(N, np.float32)}, optax.sgd(1.0))
    shard = Shard(plan.layout.shards[0], program)
    shard.initialise([np.zeros(N, np.float32)])
    places = set()
    for number in range(4):
        assert state_of(shard)[:2] == (number, -float(number))
        places.add(state_of(shard)[2])
        shard.update(ones())
    assert len(places) == 1
    reading = shard.acquire()
    arrays = reading.arrays()
    shard.update(ones())
    shard.update(ones())
    assert state_of(shard)[:2] == (6, -6.0)
    assert (arrays[0] == -4.0).all()


def test_two_readers_must_both_let_go(shard: Shard) -> None:
    first, second = shard.acquire(), shard.acquire()
    assert first is second
    where = place(first)
    shard.release(first)
    shard.update(ones())
    shard.update(ones())
    assert state_of(shard)[2] != where
    assert values(second) == 0.0
    shard.release(second)


def test_the_gradient_and_the_first_values_are_only_borrowed(program: CompiledProgram) -> None:
    params = {"w": np.zeros(N, np.float32)}
    plan = plan_of(params, optax.sgd(1.0))
    shard = Shard(plan.layout.shards[0], program)
    (first,) = blocks_of(plan, params)
    shard.initialise(first)
    gradient = ones()
    shard.update(gradient)
    for block in (*first, *gradient):
        block.fill(np.nan)  # the next frame is received into this memory
    assert state_of(shard)[:2] == (1, -1.0)


def test_before_the_first_values(program: CompiledProgram) -> None:
    plan = plan_of({"w": np.zeros(N, np.float32)}, optax.sgd(1.0))
    shard = Shard(plan.layout.shards[0], program)
    assert (shard.initialised, shard.version) == (False, 0)
    for use in (shard.acquire, lambda: shard.update(ones())):
        with pytest.raises(Refused, match="the chief has not initialised it"):
            use()
    shard.initialise(ones())
    assert bool(shard.initialised)
    with pytest.raises(RuntimeError, match="already has values"):
        shard.initialise(ones())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn"])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_all_finite_of_every_dtype(dtype: str, place: int) -> None:
    block = np.ones(1000, np.float32).astype(jnp.dtype(dtype))
    good = np.ones(3, np.float32)
    assert all_finite([block])
    assert all_finite([good, block])
    bad = [float("nan")] if dtype == "float8_e4m3fn" else [float("nan"), float("inf"), -float("inf")]
    for value in bad:
        block[place] = value
        assert not all_finite([block])
        assert not all_finite([good, block])


def test_all_finite_of_nothing() -> None:
    assert all_finite([])
    assert all_finite([np.zeros(0, np.float32)])


@pytest.fixture
def with_state() -> Shard:
    """As `shard`, with a momentum as its optimizer's state."""
    params = {"w": np.zeros(N, np.float32)}
    plan = plan_of(params, optax.sgd(1.0, momentum=0.5))
    fresh = Shard(plan.layout.shards[0], CompiledProgram(plan.shard_optimizer(0).export(), "test"))
    fresh.initialise(blocks_of(plan, params)[0])
    return fresh


def test_saving_again_takes_no_fresh_memory(with_state: Shard) -> None:
    shard = with_state

    def places() -> set[int]:
        """Where the params and the state of the shard lie, now and after the next two updates."""
        found = set()
        for _ in range(3):
            snapshot = shard.snapshot()
            buffers = (*snapshot.params.blocks, *snapshot.state)
            found |= {buffer.unsafe_buffer_pointer() for buffer in buffers}
            shard.update(ones())
            shard.update(ones())
            before = [np.array(buffer) for buffer in buffers]
            shard.update(ones())
            for kept, buffer in zip(before, buffers, strict=True):
                np.testing.assert_array_equal(kept, buffer)  # nothing wrote into what is being saved
            del buffers, buffer
            shard.release_snapshot(snapshot)
            del snapshot
        return found

    first = places()
    assert places() <= first


def test_a_state_that_was_saved_without_an_update_is_written_into_again(with_state: Shard) -> None:
    snapshot = with_state.snapshot()
    (leaf,) = snapshot.state
    with_state.release_snapshot(snapshot)
    with_state.update(ones())
    assert leaf.is_deleted()
