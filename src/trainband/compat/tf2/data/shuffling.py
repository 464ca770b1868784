"""Shuffling: each time a random one of the next elements."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from trainband.compat.tf1.datasets.ordering import shuffled as shuffled_elements
from trainband.compat.tf2.data.blocks import Block, Blocks, Single, elements_of, joined
from trainband.compat.tf2.data.passes import Pass, Recipe
from trainband.compat.tf2.data.values import number, positive
from trainband.compat.tf2.eager.seeds import seed_pair

AT_ONCE = 256
"""The most elements that are exchanged at once."""
_UNSEEDED = itertools.count()


def shuffled(parent: Recipe, buffer_size: Any, seed: Any, reshuffle_each_iteration: Any) -> Recipe:
    """Each time a random one of the next `buffer_size` elements; all of them where it is UNKNOWN (-2).

    Args:
      reshuffle_each_iteration: whether each pass has an order of its own.

    Raises:
      InvalidArgumentError: the size is not positive.
    """
    size = number(buffer_size, "buffer_size")
    if size != -2:
        positive(size, f"buffer_size must be greater than zero or UNKNOWN_CARDINALITY (-2), got {size}.")
    size = 2**62 if size == -2 else size
    randoms = seeded(seed, reshuffle_each_iteration is None or bool(reshuffle_each_iteration))

    def start(run: Pass) -> Blocks:
        return _from(parent.start(run), size, randoms(run))

    return Recipe(kind="shuffle", start=start, spec=parent.spec, count=parent.count, is_cheap=parent.is_cheap)


def _from(blocks: Blocks, size: int, random: np.random.Generator) -> Blocks:
    held, rest, ended = _filled(blocks, size)
    if not held:
        return
    if not _is_even(held):
        yield from _one_by_one([*held, *([] if rest is None else [rest])], blocks, size, random)
        return
    whole = joined(held)
    if not ended:
        store = _Store(whole)
        while rest is not None or (rest := next(blocks, None)) is not None:
            if not store.takes(rest):
                yield from _one_by_one([store.block(), rest], blocks, size, random)
                return
            for begin in range(0, rest.size, AT_ONCE):
                yield store.exchanged(rest.part(begin, min(rest.size, begin + AT_ONCE)), random)
            rest = None
        whole = store.block()
    yield whole.chosen(random.permutation(whole.size))


def _filled(blocks: Blocks, size: int) -> tuple[list[Block], Block | None, bool]:
    """(the first blocks, what is left of the last one, whether these were all)."""
    held: list[Block] = []
    missing = size
    for block in blocks:
        if block.size < missing:
            held.append(block)
            missing -= block.size
            continue
        held.append(block.part(0, missing))
        return held, block.part(missing, block.size) if block.size > missing else None, False
    return held, None, True


def _is_even(blocks: list[Block]) -> bool:
    """Whether elements are all of one shape."""
    first = blocks[0].shapes()
    return all(block.shapes() == first for block in blocks)


def _one_by_one(held: list[Block], blocks: Blocks, size: int, random: np.random.Generator) -> Blocks:
    def every() -> Any:
        yield from elements_of(held)
        yield from elements_of(blocks)

    for structure, leaves in shuffled_elements(every(), size, random):
        yield Single(structure, leaves)


class _Store:
    """A buffer of elements: of the numbers of rows, where all are rows of the same lasting arrays, or of rows."""

    def __init__(self, block: Block) -> None:
        self._structure = block.structure
        self._size = block.size
        self._shapes = block.shapes()
        self._lasting = block.columns if block.lasting else None
        self._columns: tuple[Any, ...]
        if self._lasting is not None:
            self._columns = (_numbers(block),)
        else:
            self._columns = tuple([np.array(one) for one in block.gathered()])

    def takes(self, block: Block) -> bool:
        """Whether the elements of a block are of the same shape as those here."""
        if self._lasting is not None and (not block.lasting or block.columns is not self._lasting):
            self._columns = tuple([np.array(one) for one in self.block().gathered()])
            self._lasting = None
        return self._lasting is not None or block.shapes() == self._shapes

    def block(self) -> Block:
        """All elements."""
        if self._lasting is not None:
            return Block(self._structure, self._lasting, self._columns[0], lasting=True)
        return Block(self._structure, self._columns)

    def exchanged(self, block: Block, random: np.random.Generator) -> Block:
        """Puts elements in the places of random ones, which come out, one after the other."""
        coming = (_numbers(block),) if self._lasting is not None else block.gathered()
        places = random.integers(0, self._size, block.size)
        going = [column.take(places, axis=0) for column in self._columns]
        if len(set(places.tolist())) < block.size:
            seen: dict[int, int] = {}
            for number_, place in enumerate(places.tolist()):
                if place in seen:
                    for out, in_ in zip(going, coming, strict=True):
                        out[number_] = in_[seen[place]]
                seen[place] = number_
        for column, in_ in zip(self._columns, coming, strict=True):
            column[places] = in_
        if self._lasting is not None:
            return Block(self._structure, self._lasting, going[0], lasting=True)
        return Block(self._structure, tuple(going))


def _numbers(block: Block) -> Any:
    rows = block.rows
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else np.array(rows)


def seeded(seed: Any, changes: bool) -> Callable[[Pass], np.random.Generator]:
    """What makes a random generator for each pass, from a seed and the global one.

    Without either, workers that divide the elements of a pass among them have the same generator nevertheless: it
    follows from the id of their job, and from how many generators without a seed the program has made before.

    Args:
      changes: whether it is another one each time.
    """
    pair = seed_pair(None if seed is None else number(seed, "seed"))
    first = int(np.random.default_rng(pair).integers(2**62))
    orders = np.random.default_rng(first)
    unseeded = next(_UNSEEDED) if pair is None else None
    passes = itertools.count()

    def random(run: Pass) -> np.random.Generator:
        if run.job and unseeded is not None:
            which = next(passes) if changes else 0
            return np.random.default_rng([*run.job.encode(), unseeded, which])
        return np.random.default_rng(int(orders.integers(2**62)) if changes else first)

    return random
