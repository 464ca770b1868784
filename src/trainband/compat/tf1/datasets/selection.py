"""Which elements of a dataset come, and in what order: shuffled, repeated, the first ones, every nth."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from trainband.compat.tf1.datasets import ordering
from trainband.compat.tf1.datasets.elements import Elements
from trainband.compat.tf1.datasets.run import Input, Recipe, Run, Source, tensors_of
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.keys import combined_seed


def shuffled(dataset: Recipe, buffer_size: Any, seed: Any, reshuffle_each_iteration: bool | None) -> Source:
    """Each time a random one of the next `buffer_size` elements, in another order in each pass by default."""
    size = Input.make(buffer_size)
    graph = get_default_graph()
    given = Input.make(-1 if seed is None else seed)

    def first(run: Run) -> list[Any]:
        own = None if seed is None else int(given.of(run))
        combined = combined_seed(graph.seed, own, number)
        return [0, np.random.SeedSequence(combined).entropy]

    number = len(graph.operations)

    def start(run: Run) -> Elements:
        state = run.state(start, lambda: first(run))
        if reshuffle_each_iteration is not False:
            state[0] += 1
        random = np.random.default_rng([state[0], state[1]])
        return ordering.shuffled(dataset.start(run), int(size.of(run)), random)

    return Source(dataset.element_spec, start, (dataset,), tensors_of([size, given]))


def repeated(dataset: Recipe, count: Any) -> Source:
    """The elements again and again, `count` times or without end."""
    times = Input.make(-1 if count is None else count)

    def start(run: Run) -> Elements:
        left = int(times.of(run))
        while left != 0:
            empty = True
            for element in dataset.start(run):
                empty = False
                yield element
            left -= 1
            if empty and left < 0:
                return

    return Source(dataset.element_spec, start, (dataset,), tensors_of([times]))


def first(dataset: Recipe, count: Any) -> Source:
    """The first `count` elements; all, if it is negative."""
    number = Input.make(count)

    def start(run: Run) -> Elements:
        most = int(number.of(run))
        return itertools.islice(dataset.start(run), None if most < 0 else most)

    return Source(dataset.element_spec, start, (dataset,), tensors_of([number]))


def rest(dataset: Recipe, count: Any) -> Source:
    """The elements after the first `count`; none, if it is negative."""
    number = Input.make(count)

    def start(run: Run) -> Elements:
        most = int(number.of(run))
        return iter(()) if most < 0 else itertools.islice(dataset.start(run), most, None)

    return Source(dataset.element_spec, start, (dataset,), tensors_of([number]))


def sharded(dataset: Recipe, num_shards: Any, index: Any) -> Source:
    """Every `num_shards`th element, from that of the number `index`.

    Raises:
      ValueError: the index is not below the number.
    """
    number, place = Input.make(num_shards), Input.make(index)
    if number.known is not None and number.known < 1:
        raise ValueError("num_shards must be >= 1")
    if place.known is not None and place.known < 0:
        raise ValueError("index must be >= 0")
    if number.known is not None and place.known is not None and place.known >= number.known:
        raise ValueError("index must be <= num_shards")

    def start(run: Run) -> Elements:
        return itertools.islice(dataset.start(run), int(place.of(run)), None, int(number.of(run)))

    return Source(dataset.element_spec, start, (dataset,), tensors_of([number, place]))
