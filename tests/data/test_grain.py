"""Grain's datasets and loaders as a training's batches: they go on exactly where they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from tests.train.fakes import feed_of

from trainband.train.passes import Position

grain = pytest.importorskip("grain")

SOURCE = np.arange(100)


def maps() -> Any:
    return grain.MapDataset.source(SOURCE).shuffle(seed=3).batch(8, drop_remainder=True)


def iterates() -> Any:
    return grain.MapDataset.source(SOURCE).shuffle(seed=3).to_iter_dataset().map(lambda x: 2 * x).batch(8)


def repeats() -> Any:
    return grain.MapDataset.source(SOURCE).seed(5).shuffle().repeat().to_iter_dataset().batch(8)


def prefetches() -> Any:
    """Its iterator has a thread of its own, which is ended with it."""
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    dataset = grain.MapDataset.source(SOURCE).shuffle(seed=3).to_iter_dataset(options).batch(8)
    return grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=2)


def loads() -> Any:
    sampler = grain.samplers.IndexSampler(
        100, shard_options=grain.sharding.NoSharding(), shuffle=True, num_epochs=None, seed=3
    )
    operations = [grain.transforms.Batch(8, drop_remainder=True)]
    return grain.DataLoader(data_source=SOURCE, sampler=sampler, operations=operations, worker_count=0)


MAKERS: list[Callable[[], Any]] = [maps, iterates, repeats, prefetches, loads]


def plain(batches: Iterator[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("trained", [1, 5, 11, 12, 17])
def test_a_position_in_mid_epoch_is_gone_on_from(make: Callable[[], Any], ahead: int, trained: int) -> None:
    options: dict[str, Any] = {"repeat": True, "fixed_shapes": False, "ahead": ahead}
    with feed_of(make(), **options) as feed:
        for _ in range(trained):
            next(feed)
            feed.trained()
        position = Position.from_json(feed.position.to_json())
        expected = plain(islice(feed, 6))
    assert position.state is not None
    with feed_of(make(), start=position, **options) as again:
        assert plain(islice(again, 6)) == expected


@pytest.mark.parametrize("make", MAKERS)
def test_an_iterator_of_the_callers_own(make: Callable[[], Any]) -> None:
    feed = feed_of(iter(make()), fixed_shapes=False)
    first = plain(islice(feed, 4))
    feed.trained()
    position = feed.position
    expected = plain(islice(feed, 4))
    again = feed_of(iter(make()), fixed_shapes=False, start=position)
    found = plain(islice(again, 4))
    assert found == expected
    assert found != first


def test_the_loader_gives_bytes_and_the_datasets_give_values() -> None:
    kinds = []
    for make in (loads, maps):
        with feed_of(make(), repeat=True) as feed:
            next(feed)
            feed.trained()
            kinds.append(type(feed.position.state))
    assert kinds == [bytes, dict]
