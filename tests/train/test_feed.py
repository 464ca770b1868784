"""The feed: how long it gives batches, and which it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from trainband.errors import DataError
from trainband.train.feed import feed, grouped

A, B, C = (np.full((4, 2), value, np.float32) for value in range(3))


def generator(*batches: Any) -> Iterator[Any]:
    """Everything there is, once."""
    yield from batches


class Loader:
    """Can be iterated afresh, and counts how often it was."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches
        self.epochs = 0

    def __iter__(self) -> Iterator[Any]:
        self.epochs += 1
        return iter(self.batches)


LENGTHS: list[tuple[Callable[[], Iterable[Any]], bool, int]] = [
    # batches, repeat -> how many come, of at most 7 asked for
    (lambda: [A, B, C], False, 3),
    (lambda: [A, B, C], True, 7),
    (lambda: Loader(A, B), True, 7),
    (lambda: generator(A, B, C), False, 3),
    (lambda: generator(A, B, C), True, 3),  # a generator is everything there is
    (lambda: iter([A]), True, 1),
    (lambda: {"a": A}.values(), True, 7),
]


@pytest.mark.parametrize(("make", "repeat", "count"), LENGTHS, ids=range(len(LENGTHS)))
def test_how_long_it_gives(make: Callable[[], Iterable[Any]], repeat: bool, count: int) -> None:
    assert len(list(islice(feed(make(), repeat=repeat, fixed_shapes=True), 7))) == count


def test_batches_come_in_their_order_and_as_they_are() -> None:
    loader = Loader(A, B)
    found = list(islice(feed(loader, repeat=True, fixed_shapes=True), 5))
    assert [id(batch) for batch in found] == [id(A), id(B), id(A), id(B), id(A)]
    assert loader.epochs == 3


def test_a_batch_is_asked_for_when_it_is_wanted() -> None:
    asked: list[int] = []

    def source() -> Iterator[Any]:
        for i in range(3):
            asked.append(i)
            yield A

    batches = feed(source(), repeat=False, fixed_shapes=True)
    assert asked == []
    next(batches)
    assert asked == [0]


@pytest.mark.parametrize("batches", [[], iter([]), Loader()], ids=["list", "iterator", "loader"])
@pytest.mark.parametrize("repeat", [False, True])
def test_no_batches(batches: Iterable[Any], repeat: bool) -> None:
    with pytest.raises(DataError, match="there are no batches to train on: the iterable is empty"):
        next(feed(batches, repeat=repeat, fixed_shapes=True))


def test_a_loader_that_has_run_dry() -> None:
    loader = Loader(A)
    batches = feed(loader, repeat=True, fixed_shapes=True)
    next(batches)
    loader.batches = ()
    with pytest.raises(DataError, match="no batches"):
        next(batches)


CHANGES: list[tuple[Any, Any, str]] = [
    # first, then -> the words
    (A, A[:3], r"batch 1: its array 0 is float32\[3, 2\], in the first batch it was float32\[4, 2\]; drop the last"),
    (A, A.astype(np.float64), r"is float64\[4, 2\], in the first batch it was float32"),
    ((A, np.zeros(4)), (A, np.zeros(3)), r"its array 1 is float64\[3\]"),
    ((A, B), (A,), "batch 1 has 1 arrays, the first batch had 2"),
    ({"x": A}, {"y": A}, "batch 1 has another structure than the first"),
    ((A, B), [A, B], "another structure"),
    (A, A[0], r"float32\[2\]"),
    (1, 1.0, r"is <class 'float'>\[\], in the first batch it was <class 'int'>\[\]"),
]


@pytest.mark.parametrize(("first", "then", "words"), CHANGES, ids=range(len(CHANGES)))
def test_a_batch_of_another_shape(first: Any, then: Any, words: str) -> None:
    batches = feed([first, then], repeat=False, fixed_shapes=True)
    next(batches)
    with pytest.raises(DataError, match=words) as caught:
        next(batches)
    assert "pass Trainer(fixed_shapes=False)" in str(caught.value)
    assert len(list(feed([first, then], repeat=False, fixed_shapes=False))) == 2


def test_the_next_epoch_is_compared_with_the_first() -> None:
    loader = Loader(A)
    batches = feed(loader, repeat=True, fixed_shapes=True)
    next(batches)
    loader.batches = (A[:2],)
    with pytest.raises(DataError, match="batch 1"):
        next(batches)


def test_micro_batches_come_in_groups_and_a_rest_is_left_out() -> None:
    assert list(grouped(iter("abcdefg"), 3)) == [("a", "b", "c"), ("d", "e", "f")]


def test_too_few_batches_for_one_step_are_refused() -> None:
    with pytest.raises(DataError, match="there are 2 batches, too few for one step of accumulate=3"):
        list(grouped(iter("ab"), 3))
