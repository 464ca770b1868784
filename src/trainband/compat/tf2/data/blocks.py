"""Block: some elements in a row, as one array for each of their leaves.

Stages that only choose elements pass on which rows they choose, so that a batch is taken from its arrays at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf1.datasets.elements import Spec, stacked
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.eager.shapes import TensorShape

Leaves = tuple[Any, ...]
"""The arrays of an element."""


class Block:
    """Elements of one structure, whose leaves are of one shape.

    Attributes:
      structure: of each element, with `None` for its leaves.
      columns: of each leaf, an array of rows.
      rows: which of the rows, and in which order: a slice, or an array.
      lasting: whether the arrays are the dataset's own, so that keeping rows of them costs no memory.
    """

    __slots__ = ("_columns", "lasting", "rows", "size", "structure")

    def __init__(self, structure: Any, columns: tuple[Any, ...], rows: Any = None, *, lasting: bool = False) -> None:
        self.structure = structure
        self._columns = columns
        self.rows = slice(0, len(columns[0])) if rows is None else rows
        self.size: int = self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)
        self.lasting = lasting

    @property
    def columns(self) -> tuple[Any, ...]:
        """Of each leaf, an array of rows, of which `rows` are meant."""
        return self._columns

    def element(self, place: int) -> Leaves:
        """The leaves of an element."""
        row = self.rows.start + place if isinstance(self.rows, slice) else self.rows[place]
        return tuple([column[row, ...] for column in self.columns])

    def part(self, begin: int, end: int) -> Block:
        """Some of the elements."""
        if begin == 0 and end == self.size:
            return self
        rows = self.rows
        chosen = slice(rows.start + begin, rows.start + end) if isinstance(rows, slice) else rows[begin:end]
        return Block(self.structure, self.columns, chosen, lasting=self.lasting)

    def chosen(self, places: Any) -> Block:
        """The elements at some places."""
        rows = places + self.rows.start if isinstance(self.rows, slice) else self.rows[places]
        return Block(self.structure, self.columns, rows, lasting=self.lasting)

    def gathered(self) -> tuple[Any, ...]:
        """Of each leaf, an array of the elements' own rows."""
        if isinstance(self.rows, slice):
            return tuple([column[self.rows] for column in self.columns])
        return tuple([column.take(self.rows, axis=0) for column in self.columns])

    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the leaves of an element."""
        return [column.shape[1:] for column in self.columns]

    def elements(self) -> Iterator[Leaves]:
        """Their leaves, one element after the other."""
        return (self.element(place) for place in range(self.size))


class Single(Block):
    """One element."""

    __slots__ = ("leaves",)

    def __init__(self, structure: Any, leaves: Leaves) -> None:
        self.structure = structure
        self.leaves = leaves
        self.rows = slice(0, 1)
        self.size = 1
        self.lasting = False

    @property
    def columns(self) -> tuple[Any, ...]:
        return tuple([leaf[None] for leaf in self.leaves])

    def element(self, place: int) -> Leaves:
        del place
        return self.leaves

    def shapes(self) -> list[tuple[int, ...]]:
        return [leaf.shape for leaf in self.leaves]


Blocks = Iterator[Block]
Result = Block | Exception
"""Elements, or the error that is raised in place of one."""


class Raising:
    """Iterates over blocks, and raises errors in their place. The next block comes after the error."""

    def __init__(self, results: Iterator[Result]) -> None:
        self._results = results

    def __iter__(self) -> Blocks:
        return self

    def __next__(self) -> Block:
        found = next(self._results)
        if isinstance(found, StopIteration):
            raise RuntimeError("A function of elements raised StopIteration.") from found
        if isinstance(found, Exception):
            raise found
        return found


def elements_of(blocks: Iterable[Block]) -> Iterator[tuple[Any, Leaves]]:
    """The elements of blocks, each after its structure."""
    for block in blocks:
        if block.size == 1:
            yield block.structure, block.element(0)
        else:
            for leaves in block.elements():
                yield block.structure, leaves


def joined(blocks: Sequence[Block]) -> Block:
    """The elements of some blocks as one block.

    Raises:
      InvalidArgumentError: they differ in shape.
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if type(first) is Block and all(type(one) is Block and one.columns is first.columns for one in blocks):
        rows = np.concatenate([_numbers(one.rows) for one in blocks])
        return Block(first.structure, first.columns, rows, lasting=first.lasting)
    if all(one.size == 1 for one in blocks):
        elements = [one.element(0) for one in blocks]
        return Block(first.structure, stacked_leaves(elements))
    shapes = first.shapes()
    place = 0
    for one in blocks:
        for component, (shape, other) in enumerate(zip(shapes, one.shapes(), strict=True)):
            if shape != other:
                raise InvalidArgumentError(
                    None,
                    None,
                    f"Cannot batch tensors with different shapes in component {component}. First element had shape "
                    f"{list(shape)} and element {place} had shape {list(other)}.",
                )
        place += one.size
    columns = zip(*(one.gathered() for one in blocks), strict=True)
    return Block(first.structure, tuple([np.concatenate(parts) for parts in columns]))


def stacked_leaves(elements: Sequence[Leaves]) -> tuple[Any, ...]:
    """Of each leaf, an array of its values in some elements.

    Raises:
      InvalidArgumentError: they differ in shape.
    """
    columns = zip(*elements, strict=True)
    return tuple(
        [
            stacked(values, Spec(as_dtype(values[0].dtype), TensorShape(None)), component)
            for component, values in enumerate(columns)
        ]
    )


def _numbers(rows: Any) -> Any:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
