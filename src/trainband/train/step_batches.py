"""StepBatches: the batches of each step, or of several steps that are computed in one call."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from trainband.errors import DataError
from trainband.model.batch import Several, owned
from trainband.model.variables import PyTree
from trainband.runtime.aligned import aligned_empty
from trainband.train.passes import Mark, Passes


class StepBatches:
    """Groups batches for steps.

    Args:
      passes: the source of batches.
      accumulate: batches a step; if more than 1, tuples of this many. A remainder at the end, too small for a step,
        is left out.
      steps_per_execution: if more than 1, the batches of this many steps come at once, as `Several`; fewer if the data
        ends or its shape changes.
    """

    def __init__(self, passes: Passes, accumulate: int, steps_per_execution: int) -> None:
        self._passes = passes
        self._accumulate = accumulate
        self._per_call = steps_per_execution
        self._held: tuple[PyTree, Mark] | None = None  # taken, but too different to join those before it
        self._is_over = False  # do not take any further
        self._started = passes.may_be_empty  # otherwise an empty source is an error

    def next(self) -> tuple[PyTree, tuple[Mark, ...]]:
        """Returns the next item, and a mark of where each of its steps ends.

        Raises:
          DataError: there are too few batches for one step; or as `Passes`.
          StopIteration: there is nothing more.
        """
        if self._per_call == 1:
            item, mark = self._of_step()
            return item, (mark,)
        items: list[PyTree] = []
        marks: list[Mark] = []
        kind, stack = None, None
        while len(items) < self._per_call:
            try:
                if self._is_over:
                    raise StopIteration
                item, mark = self._held or self._of_step()
            except StopIteration:
                if not items:
                    raise
                self._is_over = True
                break
            self._held = None
            if not items:
                kind, stack = _kind(item), _stack_for(item, self._per_call)
            elif _kind(item) != kind:
                self._held = item, mark
                break
            items.append(owned(item) if stack is None else _copied_to(item, stack, len(items)))
            marks.append(mark)
        if stack is not None:
            stack = jax.tree.map(lambda leaf: leaf[: len(items)], stack)
        return Several(tuple(items), self._is_over, stack), tuple(marks)

    def _of_step(self) -> tuple[PyTree, Mark]:
        """Takes the batches of one step."""
        if self._accumulate == 1:
            return next(self._passes)
        group: list[PyTree] = []
        while len(group) < self._accumulate:
            try:
                batch, mark = next(self._passes)
            except StopIteration:
                if self._started:
                    raise
                raise DataError(
                    f"there are {len(group)} batches, too few for one step of accumulate={self._accumulate}; use fewer."
                ) from None
            group.append(batch)
        self._started = True
        return tuple(group), mark


def _kind(item: PyTree) -> Any:
    """Returns a key that items share if one program can compute them."""
    leaves, structure = jax.tree.flatten(item)
    return structure, [(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]


def _stack_for(item: PyTree, count: int) -> PyTree:
    """Allocates room for `count` items like this one, if all its arrays are NumPy's."""
    leaves = jax.tree.leaves(item)
    if any(type(leaf) is not np.ndarray or leaf.dtype.hasobject for leaf in leaves):
        return None
    return jax.tree.map(lambda leaf: aligned_empty((count, *leaf.shape), leaf.dtype), item)


def _copied_to(item: PyTree, stack: PyTree, index: int) -> PyTree:
    """Copies the item to its place; returns it there."""
    for room, leaf in zip(jax.tree.leaves(stack), jax.tree.leaves(item), strict=True):
        room[index] = leaf
    return jax.tree.map(lambda room: room[index], stack)
