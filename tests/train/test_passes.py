"""Passes through batches: what they refuse, and where they resume."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from tests.train.fakes import A, B, Loader

from trainband.errors import DataError
from trainband.train.passes import Passes, Position
from trainband.train.shapes import Shapes


def passes_of(batches: Iterable[Any], **settings: Any) -> Passes:
    """One pass with batches of one shape, unless told otherwise."""
    return Passes(batches, **{"repeat": False, "fixed_shapes": True, **settings})


@pytest.mark.parametrize("batches", [[], iter([]), Loader()], ids=["list", "iterator", "loader"])
@pytest.mark.parametrize("repeat", [False, True])
def test_no_batches(batches: Iterable[Any], repeat: bool) -> None:
    with pytest.raises(DataError, match="there are no batches to train on: the iterable is empty"):
        next(passes_of(batches, repeat=repeat))


def test_a_loader_that_has_run_dry() -> None:
    loader = Loader(A)
    passes = passes_of(loader, repeat=True)
    next(passes)
    loader.batches = ()
    with pytest.raises(DataError, match="no batches"):
        next(passes)


CHANGES: list[tuple[Any, Any, str]] = [
    # first, then -> the words
    (A, A[:3], r"batch 1: array 0 is float32\[3, 2\], but was float32\[4, 2\] in the first batch; drop the last"),
    (A, A.astype(np.float64), r"is float64\[4, 2\], but was float32"),
    ((A, np.zeros(4)), (A, np.zeros(3)), r"array 1 is float64\[3\]"),
    ((A, B), (A,), "batch 1 has 1 arrays, the first batch had 2"),
    ({"x": A}, {"y": A}, "batch 1 differs in structure from the first"),
    ((A, B), [A, B], "differs in structure"),
    (A, A[0], r"float32\[2\]"),
    (1, 1.0, r"is <class 'float'>\[\], but was <class 'int'>\[\] in the first batch"),
]


@pytest.mark.parametrize(("first", "then", "words"), CHANGES, ids=range(len(CHANGES)))
def test_a_batch_of_another_shape(first: Any, then: Any, words: str) -> None:
    passes = passes_of([first, then])
    next(passes)
    with pytest.raises(DataError, match=words) as caught:
        next(passes)
    assert "pass Trainer(fixed_shapes=False)" in str(caught.value)
    assert len(list(passes_of([first, then], fixed_shapes=False))) == 2


@pytest.mark.parametrize("batch", [[1.0, 2.0], (A, [0, 1]), {"x": A.tolist()}], ids=["bare", "labels", "rows"])
def test_lists_of_numbers_are_no_arrays(batch: Any) -> None:
    with pytest.raises(DataError, match=r"batch\S* is a Python list of numbers, .* pass np.asarray\(...\) of it"):
        next(passes_of([batch]))


def test_the_next_epoch_is_compared_with_the_first() -> None:
    loader = Loader(A)
    passes = passes_of(loader, repeat=True)
    next(passes)
    loader.batches = (A[:2],)
    with pytest.raises(DataError, match="batch 1"):
        next(passes)


def sizes(*first: int) -> list[Any]:
    return [np.zeros((size, 2), np.float32) for size in first]


def test_shorter_batches_of_a_source_that_has_them() -> None:
    class Short(Loader):
        short_last = True

    assert len(list(passes_of(Short(*sizes(4, 4, 3, 4, 1))))) == 5
    for batch in (np.zeros((5, 2), np.float32), np.zeros((3, 3), np.float32), np.zeros((3, 2)), A[0]):
        with pytest.raises(DataError, match="batch 1: array 0"):
            list(passes_of(Short(A, batch)))


def test_a_position_beyond_the_end() -> None:
    with pytest.raises(DataError, match="the data ends after 3 batches, but the training was at batch 5 of it"):
        next(passes_of([0, 1, 2], repeat=True, fixed_shapes=False, start=Position(0, 5)))


def test_at_the_very_end_nothing_follows() -> None:
    assert list(passes_of([0, 1, 2], fixed_shapes=False, start=Position(0, 3))) == []


def test_bytes_are_a_state() -> None:
    position = Position(1, 2, b"\x00\xff", 3)
    assert Position.from_json(position.to_json()) == position


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"passes":-1,"batches":0,"beyond":0,"state":{"value":null}}'])
def test_no_position(text: str) -> None:
    with pytest.raises(DataError, match="this is not a position"):
        Position.from_json(text)


def test_batches_are_placed_after_the_check() -> None:
    passes = passes_of([A, B, A[:2]], place=lambda batch: batch.sum())
    assert [float(next(passes)[0]), float(next(passes)[0])] == [0.0, 8.0]
    with pytest.raises(DataError, match="batch 2"):
        next(passes)


def test_a_batch_without_examples_is_refused() -> None:
    shapes = Shapes(shorter=True)
    shapes.check((np.zeros((4, 3)), np.zeros(4)), 0)
    with pytest.raises(DataError, match=r"^batch 1 has no examples"):
        shapes.check((np.zeros((0, 3)), np.zeros(0)), 1)
