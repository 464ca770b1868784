"""The index finds what was inserted and not removed, whatever the hashes, and while it grows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainband.ps.tables.id_index import IdIndex
from trainband.ps.tables.records import FREE, Records
from trainband.ps.tables.sharding import shard_of
from trainband.rows.random_bits import mixed

MASK = 2**64 - 1


def unmixed(value: int) -> int:
    """The id whose hash is `value`."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        found = value
        for _ in range(64 // shift):
            found = value ^ (found >> shift)
        value = found * pow(factor, -1, 2**64) & MASK
    return value


class Indexed:
    """An index, its records and a dictionary of the same ids."""

    def __init__(self) -> None:
        self.records = Records([8])
        self.index = IdIndex(self.records)
        self.slots: dict[int, int] = {}

    def insert(self, ids: NDArray[np.uint64]) -> None:
        new = np.array([one for one in ids.tolist() if one not in self.slots], np.uint64)
        slots = self.records.allocate(len(new))
        self.records.ids[slots], self.records.steps[slots] = new, 0
        self.index.insert(new, slots)
        self.slots |= dict(zip(new.tolist(), slots.tolist(), strict=True))

    def remove(self, ids: NDArray[np.uint64]) -> None:
        old = np.array([one for one in ids.tolist() if one in self.slots], np.uint64)
        slots = np.array([self.slots.pop(one) for one in old.tolist()], np.int64)
        self.index.remove(old, slots)
        self.records.free(slots)

    def check(self, ids: NDArray[np.uint64]) -> None:
        assert self.index.find(ids).tolist() == [self.slots.get(one, -1) for one in ids.tolist()]


def ids_of(hashes: str) -> NDArray[np.uint64]:
    """4,000 ids; of some, hashes collide in the tag, in the bucket or in both."""
    number = np.arange(4000, dtype=np.uint64)
    if hashes == "any":
        return number
    chosen = {
        "one tag": number << np.uint64(52) | np.uint64(77),
        "few buckets": (number % np.uint64(3)) << np.uint64(60) | number,
        "last bucket": np.uint64(0xFFFFFFFF << 32) | (number >> np.uint64(3)),
        "tags of free entries": number << np.uint64(52) | (number % np.uint64(4)),
    }[hashes]
    return np.unique(np.array([unmixed(value) for value in chosen.tolist()], np.uint64))


def test_hashes_are_chosen_as_described() -> None:
    assert mixed(np.array([unmixed(5), unmixed(2**63 + 9)], np.uint64)).tolist() == [5, 2**63 + 9]


@pytest.mark.parametrize("hashes", ["any", "one tag", "few buckets", "last bucket", "tags of free entries"])
def test_ids_are_found_while_others_come_and_go(hashes: str) -> None:
    ids, random, indexed = (
        ids_of(hashes)[: 600 if hashes in ("few buckets", "last bucket") else 4000],
        np.random.default_rng(0),
        Indexed(),
    )
    for turn in range(30):
        chosen = random.choice(ids, len(ids) // 8, replace=False)
        indexed.insert(chosen)
        if turn % 2:
            indexed.remove(random.choice(ids, len(ids) // 10, replace=False))
        indexed.check(ids)
    indexed.remove(ids)
    indexed.check(ids)
    assert indexed.records.live == 0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**32), st.integers(1, 900)), max_size=12))
def test_an_index_is_a_dictionary(operations: list[tuple[bool, int, int]]) -> None:
    indexed = Indexed()
    everything = np.arange(3000, dtype=np.uint64)
    for inserts, seed, count in operations:
        ids = np.random.default_rng(seed).choice(everything, count, replace=False)
        (indexed.insert if inserts else indexed.remove)(ids)
        indexed.check(everything)


def test_slots_of_removed_rows_are_used_again() -> None:
    indexed = Indexed()
    for _ in range(40):
        ids = np.random.default_rng(_).integers(0, 2**63, 500).astype(np.uint64)
        indexed.insert(ids)
        indexed.remove(ids)
    assert indexed.records.high == 500
    assert indexed.index.bytes < 20_000


def test_growth_is_spread_over_insertions() -> None:
    indexed = Indexed()
    most = 0
    for start in range(0, 50_000, 100):
        before = indexed.index._built  # noqa: SLF001
        indexed.insert(np.arange(start, start + 100, dtype=np.uint64))
        most = max(most, indexed.index._built - before)  # noqa: SLF001
    indexed.check(np.arange(60_000, dtype=np.uint64))
    assert most <= 100 * 8 + 100


def test_free_records_are_marked() -> None:
    records = Records([4])
    slots = records.allocate(3)
    records.free(slots[1:2])
    assert records.steps[:3].tolist() == [0, FREE, 0]
    assert records.is_live(0, 3).tolist() == [True, False, True]


@pytest.mark.parametrize("kind", ["random", "in sequence", "multiples of a power of two"])
@pytest.mark.parametrize("count", [2, 3, 8, 13])
def test_shards_are_balanced(kind: str, count: int) -> None:
    number = np.arange(50_000, dtype=np.uint64)
    ids = {
        "random": np.random.default_rng(0).integers(0, 2**64, 50_000, np.uint64),
        "in sequence": number,
        "multiples of a power of two": number << np.uint64(40),
    }[kind]
    sizes = np.bincount(shard_of(ids, count), minlength=count)
    assert sizes.min() > 0.9 * sizes.mean()
    assert sizes.max() < 1.1 * sizes.mean()


def test_ids_of_one_shard_spread_over_the_index() -> None:
    ids = np.arange(80_000, dtype=np.uint64)
    own = ids[shard_of(ids, 8) == 3]
    upper = np.bincount((mixed(own) >> np.uint64(61)).astype(np.int64), minlength=8)
    assert upper.min() > 0.85 * upper.mean()


def test_shards_stay_as_they_are() -> None:
    ids = np.array([0, 1, 2, 2**63, 2**64 - 1], np.uint64)
    assert shard_of(ids, 1000).tolist() == [491, 502, 387, 121, 428]
