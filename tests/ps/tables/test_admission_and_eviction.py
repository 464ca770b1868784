"""Which ids get a row, and which rows go."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainband.errors import ModelError
from trainband.ps.tables import TableStore
from trainband.ps.tables.count_sketch import CountSketch
from trainband.rows import (
    AfterCount,
    Constant,
    Eviction,
    FewerThan,
    LowScore,
    RowInitializer,
    Sgd,
    Table,
    UnusedFor,
    WithProbability,
)
from trainband.rows.admission import Admission


def store_of(
    *, admit: Admission | None = None, evict: Eviction | None = None, initializer: RowInitializer | None = None
) -> TableStore:
    given_ = initializer or Constant(0.0)
    return TableStore(Table("t", dim=1, optimizer=Sgd(1.0), initializer=given_, admit=admit, evict=evict))


def train(store: TableStore, ids: list[int], step: int) -> None:
    store.apply(np.array(ids), np.ones((len(ids), 1), np.float32), step)


def ids_in(store: TableStore) -> list[int]:
    return sorted(np.concatenate([np.array([], np.uint64), *(chunk.ids for chunk in store.snapshot())]).tolist())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 300), max_size=60, unique=True), max_size=15), st.integers(8, 400))
def test_a_count_is_never_too_low(batches: list[list[int]], counters: int) -> None:
    sketch, exact = CountSketch(counters, 10**9), dict.fromkeys(range(301), 0)
    for batch in batches:
        for one in batch:
            exact[one] += 1
        counts = sketch.add(np.array(batch, np.uint64))
        assert all(count >= exact[one] for count, one in zip(counts.tolist(), batch, strict=True))


def test_counts_of_ids_that_fit_the_sketch_are_nearly_exact() -> None:
    sketch, ids = CountSketch(40_000, 10**9), np.arange(10_000, dtype=np.uint64)
    sketch.add(ids)
    assert np.mean(sketch.add(ids) > 2) < 0.03
    assert sketch.bytes == 40_000


def test_counts_stop_at_the_largest() -> None:
    sketch = CountSketch(8, 10**9)
    assert [int(sketch.add(np.zeros(1, np.uint64))[0]) for _ in range(300)][-1] == 255


def test_counts_are_halved_once_a_window() -> None:
    sketch, one = CountSketch(1000, 500), np.array([7], np.uint64)
    for _ in range(8):
        sketch.add(one)
    others = np.arange(100, 592, dtype=np.uint64)
    for start in range(0, len(others), 7):
        sketch.add(others[start : start + 7])
    assert 5 <= int(sketch.add(one)[0]) <= 7  # 8, halved, and one more, and a collision


def test_a_row_is_made_at_the_third_update() -> None:
    store = store_of(admit=AfterCount(3, 4096))
    found = []
    for step in range(4):
        train(store, [5, 6] if step else [5], step)
        found.append(store.lookup(np.array([5, 6])).ravel().tolist())
    assert found == [[0, 0], [0, 0], [-1, 0], [-2, -1]]
    assert store.statistics().refused == 4


def test_lookups_that_insert_are_counted_too() -> None:
    store = store_of(admit=AfterCount(2, 4096))
    store.lookup(np.array([1, 2, 2]), insert=True)
    assert ids_in(store) == []
    store.lookup(np.array([2, 2]), insert=True)
    assert ids_in(store) == [2]
    store.lookup(np.array([1, 1]))
    assert ids_in(store) == [2]


def test_ids_are_admitted_with_a_probability() -> None:
    store = store_of(admit=WithProbability(0.25))
    ids = list(range(4000))
    train(store, ids, 1)
    first = ids_in(store)
    assert 900 < len(first) < 1100
    train(store, ids, 2)
    assert 1650 < len(ids_in(store)) < 1850  # 1 - 0.75 ** 2
    again = store_of(admit=WithProbability(0.25))
    train(again, ids[::-1], 1)
    assert ids_in(again) == first


def test_unused_rows_go() -> None:
    store = store_of(evict=UnusedFor(steps=10))
    train(store, [1, 2], 0)
    train(store, [2], 10)
    assert ids_in(store) == [1, 2]
    train(store, [3], 11)
    assert ids_in(store) == [2, 3]
    assert store.lookup(np.array([1, 2])).ravel().tolist() == [0, -2]
    train(store, [1], 12)
    assert store.lookup(np.array([1])).ravel().tolist() == [-1]


def test_rows_of_few_updates_go() -> None:
    store = store_of(evict=FewerThan(2, steps=3))
    for step, ids in enumerate([[1, 2], [2], [3], [4], [4]]):
        train(store, ids, step)
    assert ids_in(store) == [2, 3, 4]


def test_rows_of_a_low_score_go() -> None:
    store = store_of(evict=LowScore(1.0, half_life=2.0))
    for step, ids in enumerate([[1, 2], [2], [2], [2], [3], [4]]):
        train(store, ids, step)
    assert ids_in(store) == [2, 4]  # 4 uses halved once; 3 has fallen to 0.7


def test_eviction_takes_work_in_proportion_to_updates() -> None:
    store = store_of(evict=UnusedFor(steps=1))
    train(store, list(range(5000)), 0)
    rows = []
    for step in range(5, 25):
        train(store, [0], step)
        rows.append(store.statistics().rows)
    assert max(before - after for before, after in zip([5000, *rows], rows, strict=False)) <= 2 + 256
    assert rows[-1] == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AfterCount(0), "AfterCount counts from 1 to 255 updates, not 0"),
        (lambda: AfterCount(2, counters=0), "AfterCount needs at least one counter, not 0"),
        (lambda: AfterCount(2, window=0), "the window of AfterCount must be at least 1 update, not 0"),
        (lambda: WithProbability(0.0), "a probability of admission must be above 0 and at most 1, not 0.0"),
        (lambda: UnusedFor(steps=0), "rows can be removed after 1 step without use or more, not 0"),
        (lambda: FewerThan(0, 1), "FewerThan needs at least 1 use, not 0"),
        (lambda: LowScore(0.0, 1.0), "a score and its half-life must be positive, not 0.0 and 1.0"),
        (lambda: Table("t", dim=0, optimizer=Sgd(1.0)), "table 't' needs at least 1 value in a row, not 0"),
        (lambda: Table("t", dim=1, optimizer=Sgd(1.0), max_rows=0), "needs room for at least 1 row, not 0"),
        (lambda: Table("t", dim=1, optimizer=Sgd(1.0), ids=0), r"must end between 1 and 2\*\*64, not at 0"),
        (
            lambda: Table("t", dim=1, optimizer=Sgd(1.0), dtype="int4"),  # type: ignore[arg-type]
            "dtype of table 't' must be one of float32, bfloat16, int8, not 'int4'",
        ),
    ],
)
def test_impossible_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make()
