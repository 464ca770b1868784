"""A store does what a dictionary of rows does, in any order of updates, evictions, snapshots and loads."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainband.errors import CheckpointError, DataError, NonFiniteGradient, ResourceExhausted
from trainband.ps.tables import TableStore
from trainband.ps.tables.records import Records
from trainband.rows import Adagrad, AfterCount, Constant, LazyAdam, Sgd, Table, Uniform, UnusedFor

DIM = 3
IDS = st.lists(st.integers(0, 30), min_size=1, max_size=20, unique=True)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), IDS, st.integers(0, 3)),
        st.tuples(st.just("lookup"), IDS, st.just(0)),
        st.tuples(st.just("insert"), IDS, st.just(0)),
        st.tuples(st.just("shards"), IDS, st.integers(1, 4)),
    ),
    max_size=25,
)


def spread(ids: list[int]) -> NDArray[np.uint64]:
    """Ids from all of the 64-bit integers, the first and the last among them."""
    return np.array([(number * (2**64 // 29 + 1) - 1) % 2**64 for number in ids], np.uint64)


def store_of(**options: object) -> TableStore:
    return TableStore(Table("t", **{"dim": DIM, "optimizer": Sgd(0.5), **options}))  # type: ignore[arg-type]


def gradients_of(ids: NDArray[np.uint64], step: int) -> NDArray[np.float32]:
    random = np.random.default_rng(step)
    return random.standard_normal((len(ids), DIM), np.float32)


@dataclass
class Model:
    """A dictionary of rows: values, uses, last step."""

    admit: int
    unused: int
    first: TableStore = field(default_factory=store_of)
    rows: dict[int, tuple[NDArray[np.float32], int, int]] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    now: int = 0

    def lookup(self, ids: NDArray[np.uint64]) -> NDArray[np.float32]:
        first = self.first.lookup(ids)  # of a store without rows
        return np.array([self.rows[one][0] if one in self.rows else first[i] for i, one in enumerate(ids.tolist())])

    def offer(self, one: int) -> bool:
        self.seen[one] = self.seen.get(one, 0) + 1
        return self.seen[one] >= self.admit

    def insert(self, ids: NDArray[np.uint64]) -> None:
        for one, values in zip(ids.tolist(), self.lookup(ids), strict=True):
            if one not in self.rows and self.offer(one):
                self.rows[one] = (values, 0, self.now)

    def apply(self, ids: NDArray[np.uint64], gradients: NDArray[np.float32], step: int) -> None:
        self.now = max(self.now, step)
        for one, values, gradient in zip(ids.tolist(), self.lookup(ids), gradients, strict=True):
            _, uses, last = self.rows.get(one, (None, 0, 0))
            if one in self.rows or self.offer(one):
                self.rows[one] = (values - np.float32(0.5) * gradient, uses + 1, max(last, step))
        self.rows = {one: row for one, row in self.rows.items() if self.now - row[2] <= self.unused}


@settings(max_examples=40, deadline=None)
@given(OPERATIONS, st.integers(1, 3), st.integers(1, 6))
def test_a_store_is_a_dictionary_of_rows(operations: list[tuple[str, list[int], int]], admit: int, unused: int) -> None:
    table = Table("t", dim=DIM, optimizer=Sgd(0.5), admit=AfterCount(admit, 4096), evict=UnusedFor(steps=unused))
    store, model = TableStore(table), Model(admit, unused)
    for kind, numbers, number in operations:
        ids = spread(numbers)
        if kind == "apply":
            step = max(0, model.now + number - 1)  # sometimes late
            gradients = gradients_of(ids, step)
            store.apply(ids, gradients, step)
            model.apply(ids, gradients, step)
        elif kind == "insert":
            np.testing.assert_array_equal(store.lookup(ids, insert=True), model.lookup(ids))
            model.insert(ids)
        elif kind == "shards":
            store = through_shards(store, number)
            model.seen = {}  # counts of ids without a row are not saved
            model.now = max((step for _, _, step in model.rows.values()), default=0)
        np.testing.assert_array_equal(store.lookup(ids), model.lookup(ids))
        found = {
            one: (values.tolist(), uses, step)
            for chunk in store.snapshot(slots=7)
            for one, values, uses, step in zip(
                chunk.ids.tolist(), chunk.values, chunk.uses.tolist(), chunk.steps.tolist(), strict=True
            )
        }
        assert found == {one: (values.tolist(), uses, step) for one, (values, uses, step) in model.rows.items()}
        assert store.statistics().rows == len(model.rows)


def through_shards(store: TableStore, count: int) -> TableStore:
    """A store of the same table, by way of `count` shards."""
    table = store._table  # noqa: SLF001
    merged = TableStore(table)
    for number in range(count):
        shard = TableStore(table)
        shard.load(store.snapshot(slots=5), (number, count))
        merged.load(shard.snapshot())
    return merged


@settings(max_examples=15, deadline=None)
@given(st.lists(IDS, min_size=1, max_size=30), st.sampled_from(["recent", "frequent"]))
def test_no_more_rows_than_allowed_and_never_those_of_this_step(batches: list[list[int]], keep: str) -> None:
    store = store_of(max_rows=10, keep=keep)
    for step, numbers in enumerate(batches):
        ids = spread(numbers)
        store.apply(ids, np.ones((len(ids), DIM), np.float32), step)
        now = sum(int((chunk.steps == step).sum()) for chunk in store.snapshot())
        assert store.statistics().rows <= 10
        assert now == min(10, len(ids))
    found = store.statistics()
    assert found.rows == found.admitted - found.evicted


@pytest.mark.smoke
@pytest.mark.parametrize(("keep", "stays"), [("recent", 2), ("frequent", 1)])
def test_the_least_used_row_makes_room(keep: str, stays: int) -> None:
    store = store_of(max_rows=2, keep=keep)
    one = np.ones((1, DIM), np.float32)
    for id_, step in ((1, 0), (1, 1), (2, 2), (3, 3)):
        store.apply(np.array([id_]), one, step)
    assert sorted(np.concatenate([chunk.ids for chunk in store.snapshot()]).tolist()) == [stays, 3]


def test_an_update_refused_changes_nothing() -> None:
    store = store_of()
    store.apply(np.arange(4), np.ones((4, DIM), np.float32), 1)
    before = store.lookup(np.arange(6)), store.statistics().rows
    bad = np.ones((6, DIM), np.float32)
    bad[5, 1] = np.inf
    with pytest.raises(NonFiniteGradient, match="the gradient of row 5 of table 't' contains NaN or infinity"):
        store.apply(np.arange(6), bad, 2)
    good = np.ones((6, DIM), np.float32)
    with pytest.raises(DataError, match="has id 2 twice; sum the gradients of each id"):
        store.apply(np.array([0, 2, 1, 5, 2, 4]), good, 2)
    with pytest.raises(DataError, match=r"must be float32 of shape \(6, 3\), not float64 of shape \(6, 3\)"):
        store.apply(np.arange(6), good.astype(np.float64), 2)
    with pytest.raises(DataError, match=r"must be float32 of shape \(6, 3\), not float32 of shape \(5, 3\)"):
        store.apply(np.arange(6), good[:5], 2)
    with pytest.raises(DataError, match="step of an update of table 't' must be from 0 to 4294967294, not -1"):
        store.apply(np.arange(6), good, -1)
    with pytest.raises(DataError, match=r"must be a vector of int64 or uint64, not int32 of shape \(6,\)"):
        store.apply(np.arange(6, dtype=np.int32), good, 2)
    np.testing.assert_array_equal(store.lookup(np.arange(6)), before[0])
    assert store.statistics().rows == before[1]


@pytest.mark.parametrize("bad", [-1, 10])
def test_ids_of_a_bounded_table_are_checked(bad: int) -> None:
    store = store_of(ids=10)
    assert store.lookup(np.array([0, 9])).shape == (2, DIM)
    with pytest.raises(DataError, match=f"table 't' has ids from 0 to 9, and {bad} is not one of them"):
        store.lookup(np.array([3, bad]))


def test_negative_ids_are_ids() -> None:
    store = store_of()
    store.apply(np.array([-1]), np.ones((1, DIM), np.float32), 0)
    np.testing.assert_array_equal(store.lookup(np.array([-1])), store.lookup(np.array([2**64 - 1], np.uint64)))
    assert store.statistics().hits == 2


def test_nothing_may_be_looked_up_and_applied() -> None:
    store = store_of()
    nothing = np.array([], np.int64)
    assert store.lookup(nothing, insert=True).shape == (0, DIM)
    store.apply(nothing, np.zeros((0, DIM), np.float32), 0)
    assert list(store.snapshot()) == []


def test_updates_between_chunks_of_a_snapshot() -> None:
    store = store_of(initializer=Constant(0.0))
    ids = np.arange(1000)
    store.apply(ids, np.ones((1000, DIM), np.float32), 1)
    found: dict[int, NDArray[np.float32]] = {}
    for step, chunk in enumerate(store.snapshot(slots=100), 2):
        assert len(chunk.ids) <= 100
        found |= dict(zip(chunk.ids.tolist(), chunk.values, strict=True))
        assert len({tuple(values) for values in chunk.values.tolist()}) == 1
        store.apply(ids, np.ones((1000, DIM), np.float32), step)
    assert sorted(found) == ids.tolist()


def test_changes_are_those_since_a_step() -> None:
    store = store_of()
    for step in range(4):
        store.apply(np.arange(step, step + 3), np.ones((3, DIM), np.float32), step)
    changed = np.concatenate([chunk.ids for chunk in store.snapshot(changed_since=2)])
    assert sorted(changed.tolist()) == [2, 3, 4, 5]
    behind = store_of()
    behind.load(store.snapshot())
    store.apply(np.arange(2), np.ones((2, DIM), np.float32), 4)
    behind.load(store.snapshot(changed_since=4))
    np.testing.assert_array_equal(behind.lookup(np.arange(6)), store.lookup(np.arange(6)))


def test_optimizer_state_is_loaded() -> None:
    saved, loaded = store_of(optimizer=LazyAdam(0.1)), store_of(optimizer=LazyAdam(0.1))
    ids, gradients = np.arange(5), np.ones((5, DIM), np.float32)
    saved.apply(ids, gradients, 1)
    loaded.load(saved.snapshot())
    for store in (saved, loaded):
        store.apply(ids, gradients * 3, 2)
    np.testing.assert_array_equal(saved.lookup(ids), loaded.lookup(ids))


def test_rows_of_another_table_are_not_loaded() -> None:
    store = store_of()
    store.apply(np.arange(5), np.ones((5, DIM), np.float32), 1)
    with pytest.raises(CheckpointError, match="have 3 values in the checkpoint, and 4 here; build the table with"):
        store_of(dim=4).load(store.snapshot())
    with pytest.raises(CheckpointError, match=r"arrays of \[\] values a row in the checkpoint, and of \[3\] here"):
        store_of(optimizer=Adagrad(0.1)).load(store.snapshot())
    (chunk,) = store.snapshot()
    with pytest.raises(CheckpointError, match=r"different numbers of rows: \[3, 5\]"):
        store_of().load([replace(chunk, ids=chunk.ids[:3])])
    with pytest.raises(CheckpointError, match="has an id twice, a step beyond 4294967294, or ids that are not uint64"):
        store_of().load([replace(chunk, ids=chunk.ids * np.uint64(0))])
    with pytest.raises(CheckpointError, match="a step beyond 4294967294"):
        store_of().load([replace(chunk, steps=chunk.steps + np.uint32(2**32 - 2))])


def test_training_continues_when_the_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_of(initializer=Constant(0.0))
    ids, one = np.arange(8), np.ones((8, DIM), np.float32)
    store.apply(ids[:4], one[:4], 1)

    def refuse(*_: object) -> None:
        raise ResourceExhausted("the system does not give 2 MiB")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(Records, "_grow", refuse)
        patch.setattr(store._rows.records, "capacity", 4)  # noqa: SLF001
        store.apply(ids, one, 2)
        store.apply(ids, one, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "table 't' refuses new rows, and training continues without them: the system does not give 2 MiB"
    ]
    np.testing.assert_array_equal(store.lookup(ids)[:, 0], [-1.5] * 4 + [0.0] * 4)
    assert store.statistics().refused_for_room == 8


def test_figures() -> None:
    store = store_of(admit=AfterCount(2, 4096), evict=UnusedFor(steps=5))
    ids, gradients = np.arange(20), np.ones((20, DIM), np.float32)
    store.apply(ids, gradients, 1)
    store.apply(ids[:15], gradients[:15], 2)
    store.lookup(ids[10:])
    found = store.statistics()
    assert (found.rows, found.hits, found.misses, found.admitted, found.refused) == (15, 5, 5, 15, 20)
    store.apply(ids[:10], gradients[:10], 8)
    found = store.statistics()
    assert (found.rows, found.evicted, found.refused_for_room) == (10, 5, 0)
    assert found.bytes_per_row == found.bytes / 10


@pytest.mark.parametrize("optimizer", [Adagrad(0.1), LazyAdam(0.1)])
def test_a_row_takes_at_most_1_3_times_its_payload(optimizer: Adagrad | LazyAdam) -> None:
    store = store_of(dim=16, optimizer=optimizer, initializer=Constant())
    payload = 4 * (16 + sum(width for width, _ in optimizer.state(16)))
    random = np.random.default_rng(0)
    for step in range(30):
        ids = random.integers(0, 2**63, 2000)
        store.apply(ids, np.ones((2000, 16), np.float32), step)
    found = store.statistics()
    building = store._rows._index._next  # noqa: SLF001
    assert (found.bytes - (building.bytes if building else 0)) / found.rows <= 1.3 * payload


def test_a_file_holds_the_rows(tmp_path: Path) -> None:
    in_memory = store_of()
    ids, gradients = np.arange(30_000), np.ones((30_000, DIM), np.float32)
    with TableStore(Table("t", dim=DIM, optimizer=Sgd(0.5)), tmp_path) as on_disk:
        for store in (in_memory, on_disk):
            store.apply(ids, gradients, 1)
        np.testing.assert_array_equal(in_memory.lookup(ids), on_disk.lookup(ids))
    assert list(tmp_path.iterdir()) == []


def test_a_row_does_not_depend_on_ps_order_or_restart() -> None:
    ids = np.random.default_rng(0).integers(0, 2**63, 500)
    one, other = store_of(initializer=Uniform(1.0)), store_of(initializer=Uniform(1.0))
    other.apply(ids[::-1].copy(), np.zeros((500, DIM), np.float32), 0)
    np.testing.assert_array_equal(one.lookup(ids), other.lookup(ids))
    assert not np.array_equal(one.lookup(ids), store_of(initializer=Uniform(1.0), seed=1).lookup(ids))
