"""Which requests share a batch, and when it starts, with a clock of the test's own."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest

from trainband.serve.batching import BatchQueue, Work, buckets_up_to


def work(examples: int = 1, arrived: float = 0.0, key: Hashable = "", deadline: float = 99.0) -> Work:
    return Work({"x": np.zeros((examples, 1))}, examples, key, arrived, deadline, lambda *_: None)


def queue(*works: Work, expected: int = 1) -> BatchQueue:
    """A queue of 8 and 2 s, whose recent batches had so many examples."""
    made = BatchQueue(8, 2.0)
    for _ in range(60 if expected > 1 else 0):  # until the mean of what it has seen is that
        made.add(work(expected))
        made.pop_batch()
    for one in works:
        made.add(one)
    return made


def test_a_single_client_waits_for_nobody() -> None:
    assert BatchQueue(8, 2.0).due_in(5.0) is None
    assert queue(work(arrived=5.0)).due_in(5.0) == 0.0


def test_where_batches_were_larger_a_request_waits_for_others_but_not_for_long() -> None:
    waiting = queue(work(arrived=5.0), expected=4)
    assert waiting.due_in(5.5) == 1.5
    assert waiting.due_in(7.5) == 0.0
    for _ in range(3):
        waiting.add(work(arrived=5.6))
    assert waiting.due_in(5.6) == 0.0


def test_after_clients_have_left_a_single_one_soon_waits_no_longer() -> None:
    waiting = queue(expected=8)
    waits = 0
    for _ in range(12):
        waiting.add(work(arrived=0.0))
        waits += waiting.due_in(0.0) != 0.0
        waiting.pop_batch()
    assert 0 < waits < 10
    assert queue(work(), expected=1).due_in(0.0) == 0.0


def test_a_batch_is_what_came_first_and_fits() -> None:
    works = [work(3), work(4), work(2), work(1)]
    waiting = queue(*works)
    assert waiting.pop_batch() == works[:2]  # the third does not fit, and nobody passes it
    assert waiting.pop_batch() == works[2:]
    assert waiting.pop_batch() == []


def test_only_requests_with_equal_keys_share_a_batch() -> None:
    works = [work(key=5), work(key=5), work(key=6), work(key=None), work(key=None)]
    waiting = queue(*works)
    assert [len(waiting.pop_batch()) for _ in range(4)] == [2, 1, 1, 1]


def test_a_large_request_lets_others_in_between_its_parts() -> None:
    large, small = work(20), work(1)
    waiting = queue(large, small)
    assert waiting.pop_batch() == [large]
    large.at = 8
    waiting.add(large)
    assert waiting.pop_batch() == [small]
    assert waiting.due_in(0.0) == 0.0  # what has begun does not wait
    assert waiting.pop_batch() == [large]


def test_what_is_too_late_is_not_computed() -> None:
    late, early = work(deadline=1.0), work(deadline=3.0)
    waiting = queue(late, early)
    assert waiting.expired(2.0) == [late]
    assert waiting.pop_batch() == [early]
    assert waiting.due_in(2.0) is None


@pytest.mark.parametrize(("most", "sizes"), [(1, (1,)), (8, (1, 2, 4, 8)), (12, (1, 2, 4, 8, 12))])
def test_batches_are_filled_up_to_few_sizes(most: int, sizes: tuple[int, ...]) -> None:
    assert buckets_up_to(most) == sizes
