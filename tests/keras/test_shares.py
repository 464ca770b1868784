"""The workers' parts of a pass are the whole, and as many updates for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.keras.beside import rows

from trainband.errors import DataError
from trainband.keras.shares import Order, Share, adapter_for

workers, batch_sizes, examples = st.integers(1, 5), st.integers(1, 9), st.integers(1, 120)


def cut(share: dict[str, Any], count: int, batch_size: int) -> list[list[Any]]:
    order = np.random.RandomState(count).permutation(count)
    return [list(Share(index=i, **share).cut(order, batch_size)) for i in range(share["workers"])]


def numbers(parts: list[list[Any]]) -> list[int]:
    return sorted(int(number) for part in parts for batch in part for number in batch)


@given(workers, batch_sizes, examples)
def test_workers_at_their_own_speeds(count: int, batch_size: int, total: int) -> None:
    parts = cut({"workers": count, "together": 1}, total, batch_size)
    assert numbers(parts) == list(range(total))
    assert sum(map(len, parts)) == Share(workers=count).updates(total, batch_size)
    assert all(len(batch) <= batch_size for part in parts for batch in part)


@given(workers, batch_sizes, examples)
def test_synchronous_workers(count: int, batch_size: int, total: int) -> None:
    """Each update is of examples that follow one another, as one device would have them."""
    share: dict[str, Any] = {"workers": count, "together": count}
    parts = cut(share, total, batch_size)
    assert numbers(parts) == list(range(total))
    updates = Share(**share).updates(total, batch_size)
    assert max(map(len, parts)) == updates
    order = np.random.RandomState(total).permutation(total)
    for i in range(total // (count * batch_size)):
        union = np.concatenate([part[i] for part in parts])
        np.testing.assert_array_equal(union, order[i * count * batch_size : (i + 1) * count * batch_size])
    if total >= count:
        assert {len(part) for part in parts} <= {updates, updates - 1}


@given(workers, batch_sizes, examples)
def test_workers_in_step(count: int, batch_size: int, total: int) -> None:
    """The same shapes on all, and nothing is lost but what the workers do not divide."""
    share: dict[str, Any] = {"workers": count, "together": count, "alike": True}
    parts = cut(share, total, batch_size)
    assert len({tuple(map(len, part)) for part in parts}) == 1
    assert all(0 < len(batch) <= batch_size for batch in parts[0])
    seen = numbers(parts)
    assert len(seen) == len(set(seen))
    assert total - len(seen) == total % count
    assert len(parts[0]) == Share(**share).updates(total, batch_size)


def test_what_would_be_refused_is_refused_before_the_first_epoch() -> None:
    x, y = rows(70)
    with pytest.raises(DataError, match=r"70 examples in batches of 32 make batches of 6 .* 4 devices do not divide"):
        adapter(Share(devices=4), x, y, batch_size=32)
    assert adapter(Share(devices=2), x, y, batch_size=32).num_batches == 3


@pytest.mark.parametrize(("total", "alike", "sizes"), [(14, True, {4}), (14, False, {4, 2}), (16, True, {4})])
def test_a_smaller_last_batch_of_a_pydataset(total: int, alike: bool, sizes: set[int]) -> None:
    """Workers in lockstep leave it out, or one of them would compute another program than the others."""
    import keras

    x, y = rows(total)

    class Dataset(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return x[4 * index : 4 * index + 4], y[4 * index : 4 * index + 4]

    seen = set()
    for index in range(2):
        share = Share(workers=2, index=index, together=2, alike=alike)
        one = adapter(share, Dataset(), batch_size=None)
        assert one.num_batches == (1 if total == 14 and alike else 2)
        batches = one.get_numpy_iterator()
        seen |= {len(next(batches)[0]) for _ in range(3)}
    assert seen == sizes


def shuffled_pass(order: Order, share: Share, x: Any, y: Any) -> list[Any]:
    """A worker's batches of the next pass over 64 examples."""
    batches = adapter(share, x, y, order=order, shuffle=True).get_numpy_iterator()
    return [next(batches)[0] for _ in range(len(range(share.index * 4, 64, share.workers * 4)))]


def is_whole(parts: list[Any], x: Any) -> bool:
    """Whether the workers' batches together have each example once."""
    return bool(np.array_equal(np.sort(np.concatenate(parts)[:, 0]), np.sort(x[:, 0])))


@given(st.booleans(), st.integers(2, 4))
def test_shuffled_arrays_are_the_same_on_all(seeded: bool, count: int) -> None:
    """Whatever seeds the workers have, and whatever one of them draws between two fits."""
    import keras

    x, y = rows()
    keras.utils.clear_session()
    wholes: dict[tuple[int, int], list[Any]] = {}
    for index in range(count):
        if seeded:
            keras.utils.set_random_seed(1 + index)
        for fit in (1, 2):
            order = Order(count, fit)
            for epoch in (0, 1):
                order.start_epoch(epoch)
                share = Share(workers=count, index=index, together=1)
                wholes.setdefault((fit, epoch), []).extend(shuffled_pass(order, share, x, y))
            if index == 0:
                np.random.random(3)  # as a callback of the chief may
    assert all(is_whole(parts, x) for parts in wholes.values())
    orders = {np.concatenate(parts)[:, 0].tobytes() for parts in wholes.values()}
    assert len(orders) == 4, "an epoch repeats the order of another"


def test_passes_of_a_fast_worker_leave_the_order_of_the_next_epoch_the_same() -> None:
    x, y = rows()
    parts = []
    for index in range(2):
        order = Order(2)
        share = Share(workers=2, index=index, together=1)
        order.start_epoch(0)
        for _ in range(1 + index):
            shuffled_pass(order, share, x, y)
        order.start_epoch(1)
        parts += shuffled_pass(order, share, x, y)
    assert is_whole(parts, x)


def test_with_steps_per_epoch_the_order_follows_from_the_pass_alone() -> None:
    """An epoch may end within a pass, and earlier for one worker than for another."""
    x, y = rows()
    parts = []
    for index in range(2):
        order = Order(2, by_epoch=False)
        share = Share(workers=2, index=index, together=1)
        order.start_epoch(0)
        shuffled_pass(order, share, x, y)
        if index:
            order.start_epoch(1)
        parts += shuffled_pass(order, share, x, y)
    assert is_whole(parts, x)


def adapter(share: Share, x: Any, y: Any = None, *, order: Order | None = None, **settings: Any) -> Any:
    defaults = {
        "sample_weight": None,
        "batch_size": 4,
        "steps_per_epoch": None,
        "shuffle": False,
        "class_weight": None,
    }
    given = {**defaults, **settings}
    data = (x, y, given.pop("sample_weight"))
    return adapter_for(share, order or Order(share.workers), data, **given)


def test_steps_per_epoch_reads_on() -> None:
    """Two epochs of half a pass see all of the data, as in Keras."""
    x, y = rows(16)
    one = adapter(Share(workers=2, together=2), x, y, batch_size=2, steps_per_epoch=2)
    assert one.num_batches is None
    batches = one.get_numpy_iterator()
    np.testing.assert_array_equal(
        np.concatenate([next(batches)[0] for _ in range(4)]), x.reshape(4, 2, 2, 6)[:, 0].reshape(8, 6)
    )


def test_too_little_data() -> None:
    x, y = rows(3)
    with pytest.raises(DataError, match="3 examples are too few for 4 workers"):
        adapter(Share(workers=4), x, y)
    with pytest.raises(DataError, match=r"3 examples make 1 of batch_size=4, but .* batch_size of 1 or less"):
        adapter(Share(workers=2, together=1), x, y)
    assert adapter(Share(workers=2, together=2), x, y).num_batches == 1
