"""Portions: what each step trains on, cut from batches as a rule says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.train.fakes import feed_of

from trainband.errors import DataError
from trainband.model.batch import Portion, examples_in_step
from trainband.train.batch_feed import Feed
from trainband.train.portions import Portions


class Shares:
    """What a rule says, one after the other; the last for ever."""

    def __init__(self, *shares: int) -> None:
        self.shares = list(shares)

    def __call__(self) -> int:
        return self.shares.pop(0) if len(self.shares) > 1 else self.shares[0]


def numbered(count: int, size: int) -> list[Any]:
    """Batches of examples that are their own numbers."""
    return [(np.arange(i * size, (i + 1) * size), np.zeros((size, 2))) for i in range(count)]


def portioned(batches: Any, share: Callable[[], int], accumulate: int = 1, *, repeat: bool = False) -> Feed:
    return feed_of(batches, repeat=repeat, portions=Portions(share, accumulate))


def sizes(portion: Portion) -> list[int]:
    return [len(batch[0]) for batch in portion.batches]


def test_steps_have_the_examples_of_their_shares_in_few_sizes_and_in_order() -> None:
    with portioned(numbered(8, 32), Shares(0, 27, 7, 1, 40)) as feed:
        taken = list(feed)
    # Parts of 2 examples, 16 of them in a usual step; the data ends in the fifth.
    assert [sizes(portion) for portion in taken[:4]] == [[32], [32, 16, 4, 2], [8, 4, 2], [2]]
    assert sizes(taken[4]) == [32, 32, 16]
    assert [portion.parts for portion in taken] == [16, 27, 7, 1, 40, 37]
    assert [examples_in_step(portion, 1) for portion in taken] == [32, 54, 14, 2, 80, 74]
    assert [(portion.usual, portion.part_examples) for portion in taken] == [(16, 2)] * 6
    np.testing.assert_array_equal(np.concatenate([b[0] for portion in taken for b in portion.batches]), np.arange(256))


def test_a_position_is_after_the_last_batch_that_is_used_up() -> None:
    with portioned(numbered(4, 16), Shares(0, 8, 24)) as feed:
        next(feed)
        feed.trained()
        assert feed.position.batches == 1
        next(feed)  # half of the second
        feed.trained()
        assert feed.position.batches == 1
        next(feed)  # its other half, and the third
        feed.trained()
        assert feed.position.batches == 3


def test_with_accumulation_batches_are_dealt_as_they_are() -> None:
    with portioned(numbered(9, 3), Shares(0, 3, 1), accumulate=4) as feed:
        taken = list(feed)
    assert [sizes(portion) for portion in taken] == [[3] * 4, [3] * 3, [3], [3]]
    assert (taken[0].usual, taken[0].part_examples) == (4, 3)
    assert examples_in_step(taken[1], 4) == 9


BAD: list[tuple[Any, str]] = [
    (numbered(1, 3), "batches of 3 examples cannot be cut into 4 to 16 equal parts"),
    (numbered(1, 127), "batches of 127 examples cannot be cut .* such as 112, or pass"),
    ([{"x": np.zeros((8, 2)), "rate": np.float32(1)}], r"batch\['rate'\] is an array without an axis"),
    ([{"x": np.zeros((8, 2)), "names": "abc"}], r"array \['names'\] is 'abc'; JAX computes only with numbers"),
    ([(np.zeros((8, 2)), np.zeros(4))], r"differ in their numbers of examples \(batch\[0\] has 8, batch\[1\] has 4\)"),
    ([], "there are no batches to train on"),
]


@pytest.mark.parametrize(("batches", "words"), BAD)
def test_batches_that_cannot_be_cut_are_refused(batches: Any, words: str) -> None:
    with portioned(batches, Shares(0)) as feed, pytest.raises(DataError, match=words):
        next(feed)
