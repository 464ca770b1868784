"""Batches: the order is a function of the seed, and every example goes to one worker in each epoch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from trainband.data import Batches
from trainband.errors import DataError

N = 103


def examples(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Row i of the features is made from i alone, so that a row and its label can be told to belong together."""
    labels = np.arange(n, dtype=np.int32)
    return (labels[:, None] * 7 + np.arange(5)).astype(np.float32), labels


def order(batches: Iterator[tuple[np.ndarray, ...]]) -> list[int]:
    """The labels as they come, after a check that each has its own features."""
    seen: list[int] = []
    for features, labels in batches:
        np.testing.assert_array_equal(features, labels[:, None] * 7 + np.arange(5))
        seen.extend(labels.tolist())
    return seen


def test_same_seed_same_order_again_and_again() -> None:
    batches = Batches(*examples(), batch_size=10, seed=3, epochs=2)
    first = order(iter(batches))
    assert first == order(iter(batches)) == order(iter(Batches(*examples(), batch_size=10, seed=3, epochs=2)))
    assert first != order(iter(Batches(*examples(), batch_size=10, seed=4, epochs=2)))
    assert first[:100] != first[100:]  # each epoch has its own order


def test_the_order_never_changes() -> None:
    """It depends on nothing but seed and epoch: other machines and other versions of NumPy must agree with this one."""
    batches = Batches(*examples(8), batch_size=4, seed=5, epochs=2)
    assert order(iter(batches)) == [1, 4, 2, 3, 7, 5, 6, 0, 4, 2, 5, 0, 7, 6, 3, 1]


@pytest.mark.parametrize("count", [1, 2, 3, 7, N])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("epoch", [0, 4])
def test_workers_share_each_epoch(count: int, shuffle: bool, epoch: int) -> None:
    seen: list[int] = []
    for index in range(count):
        batches = Batches(
            *examples(), batch_size=4, shard=(index, count), shuffle=shuffle, drop_remainder=False, seed=9
        )
        mine = order(batches.epoch(epoch))
        assert len(mine) == batches.examples
        assert abs(len(mine) - N / count) < 1
        seen.extend(mine)
    assert sorted(seen) == list(range(N))


@pytest.mark.parametrize(
    ("n", "batch_size", "drop_remainder", "sizes"),
    [
        (12, 4, True, [4, 4, 4]),
        (12, 4, False, [4, 4, 4]),
        (13, 4, True, [4, 4, 4]),
        (13, 4, False, [4, 4, 4, 1]),
        (3, 4, False, [3]),
        (1, 1, True, [1]),
    ],
)
def test_remainder(n: int, batch_size: int, drop_remainder: bool, sizes: list[int]) -> None:
    batches = Batches(*examples(n), batch_size=batch_size, drop_remainder=drop_remainder, epochs=2)
    assert len(batches) == len(sizes)
    assert [len(labels) for _, labels in batches] == sizes * 2


def test_no_example_is_left_out_for_long() -> None:
    batches = Batches(*examples(13), batch_size=4, epochs=6)
    assert set(order(iter(batches))) == set(range(13))


def test_without_shuffle_the_given_order() -> None:
    assert order(Batches(*examples(10), batch_size=3, shuffle=False, shard=(1, 2)).epoch(0)) == [1, 3, 5]


def test_without_end() -> None:
    batches = Batches(*examples(8), batch_size=4)
    assert len(order(islice(batches, 50))) == 200


@pytest.mark.parametrize("start", [0, 1, 2, 3, 7, 9])
def test_a_resumed_run_goes_on_where_it_was(start: int) -> None:
    batches = Batches(*examples(13), batch_size=4, seed=2, epochs=3)
    assert order(batches.starting_at(start)) == order(islice(batches, start, None))


def test_epoch_is_that_part_of_the_whole() -> None:
    batches = Batches(*examples(13), batch_size=4, seed=2)
    assert order(batches.epoch(2)) == order(islice(batches, 6, 9))


@pytest.mark.parametrize(
    "shape",
    [
        (16,),  # 4 rows of 16 float32 are a multiple of 64 bytes: gathered in one call
        (5,),  # not so: every batch is padded
        (),
        (3, 1000),  # a batch of 48 kB: several blocks
        (200, 700),  # a batch over 1 MiB
        (0,),
    ],
)
@pytest.mark.parametrize("drop_remainder", [True, False])
def test_every_batch_is_aligned_and_right(shape: tuple[int, ...], drop_remainder: bool) -> None:
    array = np.random.RandomState(0).standard_normal((103, *shape)).astype(np.float32)
    numbers = np.arange(103)
    for values, rows in Batches(array, numbers, batch_size=4, drop_remainder=drop_remainder, epochs=1):
        assert values.size == 0 or values.ctypes.data % 64 == 0
        assert rows.ctypes.data % 64 == 0
        assert values.flags.c_contiguous
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, array[rows])


def test_a_batch_is_never_written_again() -> None:
    batches = Batches(*examples(), batch_size=10, epochs=20)
    kept = [(features, features.copy()) for features, _ in batches]
    for features, copy in kept:
        np.testing.assert_array_equal(features, copy)


def test_a_strided_array_is_copied_once() -> None:
    wide = np.arange(80, dtype=np.int64).reshape(8, 10)
    (batch,) = Batches(wide[:, ::2], batch_size=8, shuffle=False).peek()
    np.testing.assert_array_equal(batch, wide[:, ::2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Batches(batch_size=1), "at least one array"),
        (lambda: Batches((np.zeros(3), np.zeros(3)), batch_size=1), "array 0 is a tuple; give"),  # type: ignore[arg-type]
        (lambda: Batches(np.float32(1), batch_size=1), "array 0 is a single value"),  # type: ignore[arg-type]
        (lambda: Batches(np.array(["a", None]), batch_size=1), "array 0 holds Python objects"),
        (lambda: Batches(np.zeros(3), np.zeros(4), batch_size=1), r"have \[3, 4\] rows"),
        (lambda: Batches(np.zeros(3), batch_size=0), "batch_size must be at least 1, got 0"),
        (lambda: Batches(np.zeros(3), batch_size=1, shard=(2, 2)), r"0 <= index < count, got \(2, 2\)"),
        (lambda: Batches(np.zeros(3), batch_size=1, shard=(-1, 2)), "0 <= index < count"),
        (lambda: Batches(np.zeros(3), batch_size=1, epochs=0), "epochs must be at least 1"),
        (lambda: Batches(np.zeros(3), batch_size=1, seed=-1), "seed must be at least 0"),
        (lambda: Batches(np.zeros(3), batch_size=4), "has 3 of 3 examples, too few.*drop_remainder=False"),
        (lambda: Batches(np.zeros(9), batch_size=5, shard=(1, 2)), "worker 1 of 2 has 4 of 9 examples"),
        (lambda: Batches(np.zeros(1), batch_size=1, shard=(1, 2)), "use fewer workers or more data"),
        (lambda: Batches(np.zeros(0), batch_size=1, drop_remainder=False), "has 0 of 0 examples"),
        (lambda: Batches(np.zeros(3), batch_size=1).starting_at(-1), "a batch number must be at least 0"),
        (lambda: Batches(np.zeros(3), batch_size=1).epoch(-1), "an epoch number must be at least 0"),
    ],
)
def test_refuses(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize("drop_remainder", [True, False])
@pytest.mark.parametrize("shard", [(0, 1), (1, 3)])
@pytest.mark.parametrize("given", [0, 1, 4, 8, 9, 13, 24])
def test_a_state_continues_exactly(given: int, shard: tuple[int, int], drop_remainder: bool) -> None:
    batches = Batches(*examples(), batch_size=4, seed=2, epochs=3, shard=shard, drop_remainder=drop_remainder)
    iterator = iter(batches)
    for _ in range(given):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    again = iter(batches)
    next(again)
    again.set_state(state)
    assert again.get_state() == state
    assert order(again) == order(iterator)


def test_a_state_says_how_much_of_the_jobs_epoch_is_gone() -> None:
    iterator = iter(Batches(*examples(24), batch_size=4, shard=(1, 2)))
    states = [iterator.get_state()]
    for _ in range(4):
        next(iterator)
        states.append(iterator.get_state())
    assert states == [{"epoch": e, "examples": g} for e, g in [(0, 0), (0, 8), (0, 16), (1, 0), (1, 8)]]
    assert iter(Batches(*examples(24), batch_size=4, epochs=1)).get_state() == states[0]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2), (4, 1), (1, 7)])
@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_another_number_of_workers_in_mid_epoch(before: int, after: int, steps: int) -> None:
    """What the old ones had and what the new ones get is every example, once."""

    def share(index: int, count: int) -> Batches:
        return Batches(*examples(), batch_size=4, shard=(index, count), seed=7, drop_remainder=False, epochs=1)

    seen: list[int] = []
    states: list[dict[str, int]] = []
    for index in range(before):
        iterator = iter(share(index, before))
        seen += order(islice(iterator, steps))
        states.append(iterator.get_state())
    assert all(state == states[0] for state in states)
    for index in range(after):
        iterator = iter(share(index, after))
        iterator.set_state(states[0])
        seen += order(iterator)
    assert sorted(seen) == list(range(N))


def test_a_rest_that_fills_no_batch_is_a_remainder() -> None:
    iterator = iter(Batches(*examples(20), batch_size=4, shard=(1, 2), epochs=2))
    iterator.set_state({"epoch": 0, "examples": 16})
    assert len(order(iterator)) == 8
    assert iterator.get_state() == {"epoch": 2, "examples": 0}


@pytest.mark.parametrize(
    "state", [{}, {"epoch": -1, "examples": 0}, {"epoch": 0, "examples": 104}, {"epoch": 0, "examples": 1.5}]
)
def test_no_state(state: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="restore it with the data that it was saved with"):
        iter(Batches(*examples(), batch_size=4)).set_state(state)
