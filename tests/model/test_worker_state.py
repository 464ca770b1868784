"""WorkerState: what one worker must find again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from trainband.checkpoint import Checkpoint, CheckpointDirectory, Manifest, Part
from trainband.errors import DamagedCheckpoint, ModelMismatch, ProtocolError
from trainband.model.worker_state import WorkerState, read_worker_states, redistributed, write_worker_states
from trainband.train.passes import Position

CARRY = (
    jax.random.key_data(jax.random.key(3)),
    {"m": jnp.arange(6.0).reshape(2, 3), "n": jnp.int32(7), "h": jnp.ones(2, jnp.bfloat16), "none": jnp.zeros((0, 2))},
)


def place(epoch: int, examples: int, passes: int = 0) -> str:
    return Position(passes, 0, {"epoch": epoch, "examples": examples}).to_json()


def of(worker: int, position: str = "", training: int = 1) -> WorkerState:
    return WorkerState.pack(f"worker:{worker}", training, 10 + worker, position, CARRY)


def raw(tree: Any) -> list[tuple[Any, ...]]:
    return [(np.asarray(x).dtype.name, np.asarray(x).shape, np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


def test_there_and_back() -> None:
    back = WorkerState.from_bytes(of(1, "here").to_bytes(), "worker:1")
    assert (back.task, back.training, back.steps, back.position) == ("worker:1", 1, 11, "here")
    found = back.unpack(jax.tree.map(jnp.zeros_like, CARRY))
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(CARRY))
    assert raw(found) == raw(CARRY)
    with pytest.raises(ProtocolError):
        WorkerState.from_bytes(b"\x00", "worker:1")


def test_typed_random_keys_go_with_it() -> None:
    keys = jax.random.split(jax.random.key(5), 3)
    packed = WorkerState.pack("worker:0", 1, 1, "", {"keys": keys})
    found = WorkerState.from_bytes(packed.to_bytes(), "it").unpack({"keys": jax.random.split(jax.random.key(0), 3)})[
        "keys"
    ]
    assert found.dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(keys))


@pytest.mark.parametrize("other", [((), ()), (CARRY[0], {**CARRY[1], "n": jnp.float32(0)})], ids=["less", "a dtype"])
def test_of_another_transform(other: Any) -> None:
    with pytest.raises(ModelMismatch, match="worker:0 resumes from a checkpoint that was made with another"):
        of(0).unpack(other)


def committed(tmp_path: Path, states: dict[int, WorkerState]) -> Checkpoint:
    directory = CheckpointDirectory(tmp_path, pytest.fail)
    partial = directory.create_partial(1)
    entries, part = write_worker_states(partial, states)
    (partial / "part").write_bytes(b"")
    manifest = Manifest(
        global_step=1,
        created_at=1.0,
        trainband="x",
        strategy="x",
        parts=(Part("part", 0, 0, 1, ()),),
        workers=entries,
        worker_part=part,
    )
    return directory.commit(partial, manifest)


def test_through_a_checkpoint(tmp_path: Path) -> None:
    states = {0: of(0, place(1, 2)), 11: of(11, training=2), 2: msgspec.structs.replace(of(2), carry=())}
    assert read_worker_states(committed(tmp_path, states)) == states


def test_nobody_has_any(tmp_path: Path) -> None:
    assert write_worker_states(tmp_path, {}) == ({}, None)


def test_an_entry_that_says_nothing_of_use(tmp_path: Path) -> None:
    checkpoint = committed(tmp_path, {0: of(0)})
    entry = msgspec.structs.replace(checkpoint.manifest.workers["0"], position="{}")
    broken = msgspec.structs.replace(checkpoint.manifest, workers={"0": entry})
    with pytest.raises(DamagedCheckpoint, match="has no valid entry for worker:0"):
        read_worker_states(Checkpoint(checkpoint.path, broken))


TASKS = [f"worker:{i}" for i in range(5)]


def test_as_many_as_before_have_each_their_own() -> None:
    states = {i: of(i, place(i, 0)) for i in range(3)}
    assert redistributed(states, TASKS[:3]) == states


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_others_go_on_from_the_least_place(workers: int) -> None:
    states = {0: of(0, place(1, 64)), 1: of(1, place(1, 32)), 2: of(2, place(2, 0))}
    dealt = redistributed(states, TASKS[:workers])
    assert {one.position for one in dealt.values()} == {place(1, 32)}
    assert [one.task for one in dealt.values()] == TASKS[:workers]
    for number, one in dealt.items():  # a random key of one's own is kept; a newcomer begins its own
        assert one.carry == (states[number].carry if number < 3 else ())


def test_as_many_but_others_nobody_is_forgotten() -> None:
    """Workers 0 and 4 were there; now there are 0 and 1."""
    dealt = redistributed({0: of(0, place(1, 64)), 4: of(4, place(1, 32))}, TASKS[:2])
    assert {number: one.position for number, one in dealt.items()} == {0: place(1, 32), 1: place(1, 32)}


def test_the_least_place_is_of_the_earliest_training() -> None:
    dealt = redistributed({0: of(0, place(5, 0), training=1), 1: of(1, place(0, 8), training=2)}, TASKS[:3])
    assert {(one.training, one.position) for one in dealt.values()} == {(1, place(5, 0))}


@pytest.mark.parametrize("position", ["", Position(state={"anything": 1}).to_json(), Position(state=b"1").to_json()])
def test_places_of_their_own_are_kept_by_those_who_are_left(position: str) -> None:
    states = {0: of(0, place(1, 1)), 1: of(1, position), 2: of(2, place(3, 3))}
    assert redistributed(states, TASKS[:2]) == {0: states[0], 1: states[1]}
    assert redistributed(states, TASKS[:4]) == states
    assert redistributed({}, TASKS[:2]) == {}
