"""Several datasets as one: side by side, one after the other, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from trainband.compat.tf1.datasets.ordering import grouped, interleaved
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.data.batching import of_elements
from trainband.compat.tf2.data.blocks import Block, Blocks, Leaves, Single, elements_of
from trainband.compat.tf2.data.function import Applied, ElementFunction
from trainband.compat.tf2.data.passes import INFINITE, UNKNOWN, Pass, Recipe
from trainband.compat.tf2.data.shuffling import seeded
from trainband.compat.tf2.data.specs import common
from trainband.compat.tf2.data.structure import pack
from trainband.compat.tf2.data.values import array_from, boxed, number

Element = tuple[Any, Leaves]
"""Of an element its structure and its leaves."""


def zipped(structure: Any, parents: Sequence[Recipe]) -> Recipe:
    """The elements of several datasets side by side, as long as all have some."""

    def start(run: Pass) -> Blocks:
        waiting = [parent.start(run) for parent in parents]
        held: list[Block] = []
        form: Any = None
        while True:
            for place, blocks in enumerate(waiting):
                if len(held) <= place:
                    found = next(blocks, None)
                    if found is None:
                        return
                    held.append(found)
                elif held[place].size == 0:
                    found = next(blocks, None)
                    if found is None:
                        return
                    held[place] = found
            if form is None:
                form = pack(structure, [block.structure for block in held])
            count = min(block.size for block in held)
            parts = [block.part(0, count) for block in held]
            if count == 1:
                yield Single(form, tuple([leaf for part in parts for leaf in part.element(0)]))
            elif all(_same_rows(part.rows, parts[0].rows) and part.lasting for part in parts):
                columns = tuple([column for part in parts for column in part.columns])
                yield Block(form, columns, parts[0].rows)
            else:
                yield Block(form, tuple([column for part in parts for column in part.gathered()]))
            held = [block.part(count, block.size) for block in held]

    def count() -> int:
        counts = [parent.count() for parent in parents]
        finite = [one for one in counts if one != INFINITE]
        return INFINITE if not finite else UNKNOWN if UNKNOWN in finite else min(finite)

    return Recipe(
        kind="zip",
        start=start,
        spec=lambda: pack(structure, [parent.spec() for parent in parents]),
        count=count,
        is_cheap=all(parent.is_cheap for parent in parents),
    )


def _same_rows(one: Any, other: Any) -> bool:
    return isinstance(one, slice) and isinstance(other, slice) and one == other


def concatenated(first: Recipe, second: Recipe) -> Recipe:
    """The elements of one dataset, then those of another."""

    def start(run: Pass) -> Blocks:
        yield from first.start(run)
        yield from second.start(run)

    def count() -> int:
        a, b = first.count(), second.count()
        return INFINITE if INFINITE in (a, b) else UNKNOWN if UNKNOWN in (a, b) else a + b

    return Recipe(
        kind="concatenate",
        start=start,
        spec=lambda: common([first.spec(), second.spec()]),
        count=count,
        is_cheap=first.is_cheap and second.is_cheap,
    )


def dataset_of(work: Applied, structure: Any, leaves: Leaves) -> Any:
    """The dataset that a function gives for an element.

    Raises:
      TypeError: it gives something else.
    """
    found = work.value(structure, leaves)
    if not hasattr(found, "recipe"):
        raise TypeError(f"Invalid `map_func`. `map_func` must return a `Dataset` object. Got {type(found)}.")
    return found


def flat_mapped(parent: Recipe, function: ElementFunction) -> Recipe:
    """The elements of the datasets that a function gives."""

    def start(run: Pass) -> Blocks:
        work = function.begin(run)
        for structure, leaves in elements_of(parent.start(run)):
            yield from dataset_of(work, structure, leaves).recipe.start(run)

    return Recipe(kind="flat_map", start=start, spec=lambda: _inner_spec(parent, function))


def _inner_spec(parent: Recipe, function: ElementFunction) -> Any:
    run = Pass()
    try:
        work = function.begin(run)
        for structure, leaves in elements_of(parent.start(run)):
            return dataset_of(work, structure, leaves).element_spec
    finally:
        run.close()
    raise ValueError("The elements of an empty dataset are not known.")


def interleaving(parent: Recipe, function: ElementFunction, cycle_length: Any, block_length: Any) -> Recipe:
    """From `cycle_length` datasets at a time, `block_length` elements in a row of each."""
    cycle = -1 if cycle_length is None else number(cycle_length, "cycle_length")
    cycle = 10 if cycle == -1 else cycle
    if cycle < 1:
        raise InvalidArgumentError(None, None, f"`cycle_length` must be > 0, got {cycle}.")
    block = 1 if block_length is None else number(block_length, "block_length")
    if block < 1:
        raise InvalidArgumentError(None, None, f"`block_length` must be > 0, got {block}.")

    def start(run: Pass) -> Blocks:
        work = function.begin(run)

        def opened(element: Any) -> Iterator[Any]:
            return elements_of(dataset_of(work, *element).recipe.start(run))

        for structure, leaves in interleaved(elements_of(parent.start(run)), opened, cycle, block):
            yield Single(structure, leaves)

    return Recipe(kind="interleave", start=start, spec=lambda: _inner_spec(parent, function))


def chosen(parents: Sequence[Recipe], choices: Recipe, stop_on_empty: bool) -> Recipe:
    """Elements of the datasets whose numbers another one gives."""

    def start(run: Pass) -> Blocks:
        sources: list[Iterator[Element] | None] = [elements_of(parent.start(run)) for parent in parents]
        for _, (choice,) in elements_of(choices.start(run)):
            place = int(choice)
            if not 0 <= place < len(sources):
                raise InvalidArgumentError(None, None, f"Selector index out of range: {place} >= {len(sources)}.")
            source = sources[place]
            found = None if source is None else next(source, None)
            if found is not None:
                yield Single(*found)
                continue
            sources[place] = None
            if stop_on_empty or all(one is None for one in sources):
                return

    return Recipe(kind="choose", start=start, spec=lambda: common([parent.spec() for parent in parents]))


def sampled(parents: Sequence[Recipe], weights: Any, seed: Any, stop_on_empty: bool, changes: bool) -> Recipe:
    """Elements of datasets that are drawn with some weights."""
    shares = np.full(len(parents), 1.0) if weights is None else np.asarray(array_from(weights), np.float64)
    if shares.shape != (len(parents),):
        raise ValueError(f"Invalid `weights`. The shape of `weights` should be compatible with [{len(parents)}] but is "
                         f"{list(shares.shape)}.")  # fmt: skip
    randoms = seeded(seed, changes)

    def start(run: Pass) -> Blocks:
        random = randoms(run)
        sources: list[Iterator[Element]] = [elements_of(parent.start(run)) for parent in parents]
        left = list(shares)
        while any(left):
            place = int(np.searchsorted(np.cumsum(left), random.random() * sum(left), side="right"))
            found = next(sources[place], None)
            if found is not None:
                yield Single(*found)
            elif stop_on_empty:
                return
            else:
                left[place] = 0.0

    return Recipe(kind="sample", start=start, spec=lambda: common([parent.spec() for parent in parents]))


def grouped_by(
    parent: Recipe,
    key: ElementFunction,
    reduce: Callable[[Any, Any], Any],
    size: Callable[[int], int],
    made: Callable[[Recipe], Any],
) -> Recipe:
    """What `reduce` makes of each `size(key)` elements of one key, and of what is left at the end.

    Args:
      made: makes a dataset of a recipe.
    """

    def start(run: Pass) -> Blocks:
        work, function = key.begin(run), ElementFunction(reduce).begin(run)

        def key_of(element: Any) -> int:
            return int(work.of_element(*element)[1][0])

        def window_of(number_: int, group: Any) -> Iterator[Any]:
            return elements_of(of_window(function, number_, group).recipe.start(run))

        for structure, leaves in grouped(elements_of(parent.start(run)), key_of, size, window_of):
            yield Single(structure, leaves)

    def of_window(function: Applied, number_: int, group: Any) -> Any:
        window = made(of_elements([leaves for _, leaves in group], group[0][0], parent.spec))
        found = function.value((None, None), (np.asarray(number_, np.int64), boxed(window)))
        if not hasattr(found, "recipe"):
            raise TypeError(f"`reduce_func` must return a `Dataset` object, got {found!r}.")
        return found

    def spec() -> Any:
        run = Pass()
        for element in elements_of(parent.start(run)):
            number_ = int(key.begin(run).of_element(*element)[1][0])
            return of_window(ElementFunction(reduce).begin(run), number_, [element]).element_spec
        raise ValueError("The elements of an empty dataset are not known.")

    return Recipe(kind="group_by_window", start=start, spec=spec)
