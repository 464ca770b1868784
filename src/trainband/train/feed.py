"""The feed: batches for a training, one after the other, checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import jax
import numpy as np

from trainband.errors import DataError
from trainband.ps.variables import PyTree


def feed(batches: Iterable[PyTree], *, repeat: bool, fixed_shapes: bool) -> Iterator[PyTree]:
    """Yields batches for as long as there are any.

    Args:
      batches: any iterable. One that can be iterated afresh (a list, a loader) is one epoch; an iterator
        or generator is everything there is.
      repeat: start another epoch when one ends, where `batches` can be iterated afresh.
      fixed_shapes: refuse a batch whose shapes or dtypes are not those of the first. Each new shape would be
        compiled anew, seconds of silence that nobody asked for.

    Raises:
      DataError: there is no batch at all, or one of another shape than the first.
    """
    first: list[tuple[tuple[int, ...], Any]] | None = None
    structure: Any = None
    number = 0
    while True:
        epoch = iter(batches)
        before = number
        for batch in epoch:
            if fixed_shapes:
                leaves, tree = jax.tree.flatten(batch)
                shapes = [(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]
                if first is None:
                    first, structure = shapes, tree
                elif shapes != first or tree != structure:
                    raise DataError(_difference(number, first, shapes))
            number += 1
            yield batch
        if number == before:
            raise DataError(
                "there are no batches to train on: the iterable is empty; check the data and the batch size."
            )
        if not repeat or epoch is batches:
            return


def grouped(batches: Iterator[PyTree], count: int) -> Iterator[tuple[PyTree, ...]]:
    """Yields tuples of `count` batches; what is left at the end is too little for a step, and is left out.

    Raises:
      DataError: there are not even batches for one.
    """
    begun = False
    while len(group := tuple(islice(batches, count))) == count:
        begun = True
        yield group
    if not begun:
        raise DataError(f"there are {len(group)} batches, too few for one step of accumulate={count}; use fewer.")


def _difference(
    number: int, first: list[tuple[tuple[int, ...], Any]], shapes: list[tuple[tuple[int, ...], Any]]
) -> str:
    advice = (
        "drop the last, shorter batch of an epoch, pad it, or pass Trainer(fixed_shapes=False) to have every new "
        "shape compiled"
    )
    if len(first) != len(shapes):
        return f"batch {number} has {len(shapes)} arrays, the first batch had {len(first)}; {advice}."
    for i, (a, b) in enumerate(zip(first, shapes, strict=True)):
        if a != b:
            return f"batch {number}: its array {i} is {_shown(b)}, in the first batch it was {_shown(a)}; {advice}."
    return f"batch {number} has another structure than the first; {advice}."


def _shown(shape: tuple[tuple[int, ...], Any]) -> str:
    return f"{shape[1]}{list(shape[0])}"
