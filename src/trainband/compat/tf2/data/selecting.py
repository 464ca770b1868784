"""Which elements come, and how often: taken, skipped, sharded, repeated, filtered, unique."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.errors import InvalidArgumentError, OpError
from trainband.compat.tf2.data.blocks import Blocks, Raising, Result, Single, elements_of
from trainband.compat.tf2.data.chunks import chunks
from trainband.compat.tf2.data.function import Applied, ElementFunction
from trainband.compat.tf2.data.passes import INFINITE, UNKNOWN, Pass, Recipe
from trainband.compat.tf2.data.values import number

_log = logging.getLogger(__name__)


def taken(parent: Recipe, count: Any) -> Recipe:
    """The first elements; all where the number is -1."""
    most = number(count, "count")

    def start(run: Pass) -> Blocks:
        left = most
        if most == 0:
            return
        for block in parent.start(run):
            if most < 0 or block.size < left:
                yield block
                left -= block.size
            else:
                yield block.part(0, left)
                return

    def size() -> int:
        held = parent.count()
        return held if most < 0 or held == UNKNOWN else most if held == INFINITE else min(held, most)

    return Recipe(kind="take", start=start, spec=parent.spec, count=size, is_cheap=parent.is_cheap)


def skipped(parent: Recipe, count: Any) -> Recipe:
    """The elements after the first ones; none where the number is -1."""
    first = number(count, "count")

    def start(run: Pass) -> Blocks:
        if first < 0:
            return
        left = first
        for block in parent.start(run):
            if left >= block.size:
                left -= block.size
            else:
                yield block.part(left, block.size)
                left = 0

    def size() -> int:
        held = parent.count()
        return held if held < 0 else 0 if first < 0 else max(0, held - first)

    return Recipe(kind="skip", start=start, spec=parent.spec, count=size, is_cheap=parent.is_cheap)


def sharded(parent: Recipe, num_shards: Any, index: Any) -> Recipe:
    """Each `num_shards`-th element, from the one with number `index` on.

    Raises:
      InvalidArgumentError: there is no such shard.
    """
    shards, place = number(num_shards, "num_shards"), number(index, "index")
    if shards < 1:
        raise InvalidArgumentError(None, None, f"Number of shards must be greater than zero (currently {shards}).")
    if not 0 <= place < shards:
        raise InvalidArgumentError(
            None, None, f"Index must be between 0 and {shards - 1} (currently index = {place}, num_shards = {shards})."
        )

    def start(run: Pass) -> Blocks:
        wait = place
        for block in parent.start(run):
            if wait < block.size:
                yield block if block.size == 1 else block.chosen(np.arange(wait, block.size, shards))
                wait += -(-(block.size - wait) // shards) * shards
            wait -= block.size

    def size() -> int:
        held = parent.count()
        return held if held < 0 else len(range(place, held, shards))

    return Recipe(kind="shard", start=start, spec=parent.spec, count=size, is_cheap=parent.is_cheap)


def repeated(parent: Recipe, count: Any) -> Recipe:
    """The elements again and again: so many times, or without end where that is -1 or left out."""
    times = -1 if count is None else number(count, "count")

    def start(run: Pass) -> Blocks:
        for _ in itertools.count() if times < 0 else range(times):
            is_empty = True
            for block in parent.start(run):
                is_empty = False
                yield block
            if is_empty:
                return

    def size() -> int:
        held = parent.count()
        if held == 0 or times == 0:
            return 0
        return INFINITE if times < 0 or held == INFINITE else UNKNOWN if held == UNKNOWN else held * times

    return Recipe(kind="repeat", start=start, spec=parent.spec, count=size, is_cheap=parent.is_cheap)


def filtered(parent: Recipe, function: ElementFunction) -> Recipe:
    """The elements for which a function gives true."""

    def start(run: Pass) -> Blocks:
        return Raising(_passing(parent.start(run), function.begin(run)))

    return Recipe(kind="filter", start=start, spec=parent.spec)


def _passing(blocks: Blocks, work: Applied) -> Iterator[Result]:
    """The elements for which a predicate gives true."""
    for part in chunks(blocks, work):
        place = 0
        for found in work.results(part):
            if isinstance(found, Exception):
                yield found
                place += 1
                continue
            (answers, *_) = found.gathered()
            if answers.dtype != bool or answers.ndim != 1:
                raise ValueError(
                    "Invalid `predicate`. `predicate` must return a `tf.bool` scalar tensor, but its return type "
                    f"is {answers.dtype} with shape {answers.shape[1:]}."
                )
            asked = part.part(place, place + found.size)
            place += found.size
            if answers.all():
                yield asked
            elif answers.any():
                yield asked.chosen(np.flatnonzero(answers))


def taken_while(parent: Recipe, function: ElementFunction) -> Recipe:
    """The elements before the first for which a function gives false."""

    def start(run: Pass) -> Blocks:
        work = function.begin(run)
        for structure, leaves in elements_of(parent.start(run)):
            if not bool(work.of_element(structure, leaves)[1][0]):
                return
            yield Single(structure, leaves)

    return Recipe(kind="take_while", start=start, spec=parent.spec)


def unique(parent: Recipe) -> Recipe:
    """Each element once."""

    def start(run: Pass) -> Blocks:
        seen: set[Any] = set()
        for structure, leaves in elements_of(parent.start(run)):
            if len(leaves) != 1:
                raise TypeError("`tf.data.Dataset.unique` works on datasets of one component.")
            one = leaves[0]
            key = tuple(one.reshape(-1).tolist())
            if key not in seen:
                seen.add(key)
                yield Single(structure, leaves)

    return Recipe(kind="unique", start=start, spec=parent.spec)


def without_errors(parent: Recipe, log_warning: bool) -> Recipe:
    """The elements that raise no error."""

    def start(run: Pass) -> Blocks:
        blocks = parent.start(run)
        while True:
            try:
                yield next(blocks)
            except StopIteration:
                return
            except (OpError, ValueError, TypeError) as exc:
                if log_warning:
                    _log.warning("Error raised with error message %s", exc)

    return Recipe(kind="ignore_errors", start=start, spec=parent.spec)
