"""Whether a thread for batches pays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trainband.train.data_cost import DataCost


def judged(gives_s: Iterator[float], train_s: float) -> list[bool]:
    """What is said of each of 40 batches."""
    cost, now, found = DataCost(), 0.0, []
    for _ in range(40):
        begin, now = now, now + next(gives_s)
        found.append(cost.is_high(begin, now))
        now += train_s
    return found


@pytest.mark.parametrize(
    ("give_s", "train_s", "high"), [(0.001, 0.001, True), (0.0001, 0.0, False), (0.001, 0.1, False)]
)
def test_every_20_batches_are_judged(give_s: float, train_s: float, high: bool) -> None:
    found = judged(iter([give_s] * 40), train_s)
    assert [number for number, one in enumerate(found, 1) if one] == ([20, 40] if high else [])


def test_one_batch_that_takes_long_does_not_count() -> None:
    """Such as the first: what is found out about it then is known for all others."""
    assert not any(judged(iter([1.0] + [0.00005] * 39), 0.001))
