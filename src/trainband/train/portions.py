"""Portions: batches cut and joined for steps whose size an update rule decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.errors import DataError
from trainband.model.batch import Portion, examples_in
from trainband.model.variables import PyTree
from trainband.train.passes import Mark

MOST_PARTS = 16
"""The most parts of a batch: with three workers, shares are within 1/48 of an update of their ideal."""
LEAST_PARTS = 4
"""With fewer, shares would be too coarse to be useful."""

Taken = tuple[PyTree, tuple[Mark, ...]]


@dataclass(slots=True)
class _Held:
    """A batch, and how many of its examples are used up."""

    batch: PyTree
    examples: int
    marks: tuple[Mark, ...]
    used: int = 0


class Portions:
    """Combines batches into portions.

    Without accumulation, each batch is cut into up to 16 equal parts, and a step's examples are computed as batches of
    1, 2, 4 and 8 parts and of whole batches: at most five sizes are compiled, and none is larger than the user's.
    With it, a part is a whole batch, none is cut, and one size is compiled.

    Args:
      share: how many parts the next step has; 0 for the usual number.
      accumulate: batches in a usual step.
    """

    def __init__(self, share: Callable[[], int], accumulate: int) -> None:
        self._share = share
        self._accumulate = accumulate
        self._cuts = accumulate == 1
        self._usual = 0 if self._cuts else accumulate
        self._part = 0
        self._held: deque[_Held] = deque()
        self._is_over = False

    def next(self, next_batch: Callable[[], Taken]) -> tuple[Portion, tuple[Mark, ...]]:
        """Returns the next portion, and the mark after the last batch that it uses up, if any.

        At the end of the data it may be smaller.

        Raises:
          DataError: a batch cannot be cut.
          StopIteration: there is nothing more.
        """
        if not self._part:
            self._pull(next_batch)
            self._measure(self._held[0])
        wanted = self._share() or self._usual
        while not self._is_over and self._available() < wanted * (self._part if self._cuts else 1):
            try:
                self._pull(next_batch)
            except StopIteration:
                self._is_over = True
        if not self._held:
            raise StopIteration
        marks: list[Mark] = []
        if self._cuts:
            examples = min(self._available(), wanted * self._part)
            batches = tuple(self._cut(size, marks) for size in self._sizes(examples))
            parts = -(-examples // self._part)
        else:
            taken = [self._held.popleft() for _ in range(min(wanted, len(self._held)))]
            batches = tuple(held.batch for held in taken)
            parts = len(batches)
            marks = [mark for held in taken for mark in held.marks]
        return Portion(batches, parts, self._usual, self._part), tuple(marks[-1:])

    def _pull(self, next_batch: Callable[[], Taken]) -> None:
        batch, marks = next_batch()
        self._held.append(_Held(batch, _cuttable(batch) if self._cuts else examples_in(batch), marks))

    def _measure(self, first: _Held) -> None:
        """Decides the size of a part from the first batch."""
        if not self._cuts:
            self._part = first.examples
            return
        fitting = [n for n in range(LEAST_PARTS, MOST_PARTS + 1) if first.examples % n == 0]
        if not fitting:
            near = max(LEAST_PARTS, first.examples - first.examples % (16 if first.examples > 16 else 4))
            raise DataError(
                f"batches of {first.examples} examples cannot be cut into {LEAST_PARTS} to {MOST_PARTS} equal parts, "
                f"which Sync(balance='speed') divides among the workers; use a batch_size such as {near}, or pass "
                "Trainer(accumulate=8) and smaller batches, which are then divided whole."
            )
        self._usual = fitting[-1]
        self._part = first.examples // self._usual

    def _available(self) -> int:
        return sum(held.examples - held.used for held in self._held) if self._cuts else len(self._held)

    def _sizes(self, examples: int) -> list[int]:
        """Returns the sizes of the batches that compute this many examples."""
        parts, rest = divmod(examples, self._part)
        whole, parts = divmod(parts, self._usual)
        bits = [1 << bit for bit in reversed(range(parts.bit_length())) if parts >> bit & 1]
        return [self._part * n for n in (*[self._usual] * whole, *bits)] + [rest] * (rest > 0)

    def _cut(self, size: int, marks: list[Mark]) -> PyTree:
        """Returns the next `size` examples as one batch; adds the marks of batches that are used up."""
        pieces: list[PyTree] = []
        while size:
            held = self._held[0]
            some = min(size, held.examples - held.used)
            begin, end = held.used, held.used + some
            if some == held.examples:
                pieces.append(held.batch)
            else:
                pieces.append(jax.tree.map(lambda leaf, begin=begin, end=end: leaf[begin:end], held.batch))
            held.used, size = end, size - some
            if held.used == held.examples:
                marks.extend(held.marks)
                self._held.popleft()
        return pieces[0] if len(pieces) == 1 else jax.tree.map(_joined, *pieces)


def _joined(*leaves: Any) -> Any:
    return jnp.concatenate(leaves) if isinstance(leaves[0], jax.Array) else np.concatenate(leaves)


def _cuttable(batch: PyTree) -> int:
    """Returns how many examples a batch has that can be cut.

    Raises:
      DataError: it holds something without a first axis of examples.
    """
    lengths: dict[int, str] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        where = f"batch{jax.tree_util.keystr(path)}"
        shape = getattr(leaf, "shape", None)
        if not shape:
            kind = "an array without an axis" if shape == () else f"a {type(leaf).__name__}"
            raise DataError(
                f"{where} is {kind}, which Sync(balance='speed') cannot divide by examples; give every array of a "
                "batch a first axis of examples, or pass Trainer(accumulate=8) and smaller batches, which are then "
                "divided whole."
            )
        lengths.setdefault(int(shape[0]), where)
    if len(lengths) != 1:
        shown = ", ".join(f"{where} has {length}" for length, where in lengths.items()) or "it has no array"
        raise DataError(
            f"the arrays of a batch differ in their numbers of examples ({shown}), so Sync(balance='speed') cannot "
            "divide it; pass Trainer(accumulate=8) and smaller batches, which are then divided whole."
        )
    return next(iter(lengths))
