"""How pieces of shared data become batches: examples by their number, rows of arrays, or files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.data.batches import batches_ahead, gather
from trainband.errors import DataError

Rows = Any
"""A table: an array with a first axis of examples, or tuples, lists and dicts of such arrays."""


class Reader:
    """Turns pieces into batches. One subclass for each kind of source.

    A piece is a range of units (examples, or files). It is read in chunks, and a batch is made of parts of chunks.
    """

    batches_at_a_time = 1

    def read(self, unit: int, stop: int, order: NDArray[np.intp]) -> Iterator[Chunk]:
        """Yields the content of the units [unit, stop) of an order."""
        raise NotImplementedError

    def batches(self, parts: Sequence[Rows], sizes: Sequence[int]) -> Iterator[Any]:
        """Makes batches of these sizes from parts that have as many rows in total."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that were read together.

    Attributes:
      rows: a table, or the indices of examples.
      count: how many.
      unit: the unit of the first row.
      row: its number within the unit.
      units: whether every row is a unit; else all belong to one unit.
      last: whether the unit ends with the last row.
    """

    rows: Rows
    count: int
    unit: int
    row: int
    units: bool
    last: bool

    def mark(self, used: int) -> tuple[int, int]:
        """Returns the position (unit, row) after the first `used` rows."""
        if self.units:
            return self.unit + used, 0
        return (self.unit + 1, 0) if self.last and used == self.count else (self.unit, self.row + used)


@dataclass(frozen=True, slots=True)
class Indexed(Reader):
    """Examples by their number, loaded by the user's function."""

    load: Callable[[NDArray[np.intp]], Any]

    def read(self, unit: int, stop: int, order: NDArray[np.intp]) -> Iterator[Chunk]:
        """Yields the numbers."""
        yield Chunk(order[unit:stop], stop - unit, unit, 0, units=True, last=True)

    def batches(self, parts: Sequence[Rows], sizes: Sequence[int]) -> Iterator[Any]:
        """Loads each batch by its numbers."""
        rows = _joined(parts)
        for size in sizes:
            yield self.load(rows[:size])
            rows = rows[size:]


class Arrays(Reader):
    """Rows of arrays, gathered ahead as `Batches` does."""

    def __init__(self, arrays: Sequence[NDArray[Any]], batch_size: int, *, bare: bool = False) -> None:
        """`arrays`: [n, ...] each; `bare`: there is one, and batches are arrays rather than tuples."""
        self._bare = bare
        self._arrays = tuple(np.ascontiguousarray(array) for array in arrays)
        self.batches_at_a_time = batches_ahead(self._arrays, batch_size)

    def read(self, unit: int, stop: int, order: NDArray[np.intp]) -> Iterator[Chunk]:
        """Yields the numbers of the rows."""
        yield Chunk(order[unit:stop], stop - unit, unit, 0, units=True, last=True)

    def batches(self, parts: Sequence[Rows], sizes: Sequence[int]) -> Iterator[Any]:
        """Gathers the rows; all sizes are the same."""
        rows = _joined(parts).reshape(len(sizes), sizes[0])
        if self._bare:
            return iter(gather(self._arrays[0], rows))
        return zip(*(gather(array, rows) for array in self._arrays), strict=True)


@dataclass(frozen=True, slots=True)
class Files(Reader):
    """Files, read by the user's function."""

    paths: Sequence[str | os.PathLike[str]]
    load: Callable[[Any], Any]
    batch_size: int

    def read(self, unit: int, stop: int, order: NDArray[np.intp]) -> Iterator[Chunk]:
        """Yields the content of each file."""
        for position in range(unit, stop):
            path = self.paths[order[position]]
            row = 0
            held = Chunk((), 0, position, 0, units=False, last=True)  # held until known whether it is the last
            for rows in self._tables(path):
                if held.count:
                    yield replace(held, last=False)
                row += held.count
                count = count_rows(rows, f"the result of load for {os.fspath(path)}")
                held = Chunk(rows, count, position, row, units=False, last=True)
            yield held

    def batches(self, parts: Sequence[Rows], sizes: Sequence[int]) -> Iterator[Any]:
        """Joins the parts; only one size is allowed."""
        assert len(sizes) == 1
        yield concatenate(parts)

    def _tables(self, path: str | os.PathLike[str]) -> Iterator[Rows]:
        content = self.load(path)
        if isinstance(content, tuple | Mapping) or hasattr(content, "shape"):
            yield content
            return
        if not isinstance(content, Iterable):
            raise DataError(
                f"load returned {type(content).__name__} for {os.fspath(path)}; it must return arrays, or an iterable "
                "of examples."
            )
        examples = iter(content)
        while some := list(islice(examples, self.batch_size)):
            yield stack(some, os.fspath(path))


def cut(rows: Rows, start: int, stop: int) -> Rows:
    """Returns the rows [start, stop) of a table, without a copy."""
    return _merged([rows], lambda leaves: leaves[0][start:stop], "")


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Returns one table with the rows of all.

    Raises:
      DataError: they are not alike.
    """
    if len(parts) == 1:
        return parts[0]
    return _merged(parts, np.concatenate, "files")


def stack(examples: Sequence[Any], name: str) -> Rows:
    """Returns a table with these examples as its rows.

    Raises:
      DataError: they are not alike.
    """
    return _merged(examples, np.stack, f"examples of {name}")


def count_rows(rows: Rows, name: str) -> int:
    """Counts the rows of a table.

    Raises:
      DataError: it has no array, or arrays of different length.
    """
    lengths = set(_lengths(rows, name))
    if len(lengths) != 1:
        raise DataError(f"{name} has arrays of {sorted(lengths)} rows; it needs arrays, all with the same number.")
    return lengths.pop()


def _lengths(rows: Rows, name: str) -> Iterator[int]:
    if isinstance(rows, Mapping | tuple | list):
        for child in rows.values() if isinstance(rows, Mapping) else rows:
            yield from _lengths(child, name)
        return
    shape = np.shape(rows)
    if not shape:
        raise DataError(f"{name} holds a single value; every array needs a first axis of examples.")
    yield shape[0]


def _merged(tables: Sequence[Any], merge: Callable[[Sequence[Any]], Any], what: str) -> Any:
    """Merges trees of one structure leaf by leaf."""
    first = tables[0]
    if any(type(table) is not type(first) for table in tables) and isinstance(first, Mapping | tuple | list):
        raise DataError(f"the {what} are not alike: {_kinds(tables)}; all must have the same structure.")
    if isinstance(first, Mapping):
        if any(table.keys() != first.keys() for table in tables):
            raise DataError(f"the {what} are not alike: they have different keys; all must have the same structure.")
        return {key: _merged([table[key] for table in tables], merge, what) for key in first}
    if isinstance(first, tuple | list):
        if len({len(table) for table in tables}) > 1:
            raise DataError(f"the {what} are not alike: they differ in length; all must have the same structure.")
        children = [_merged(parts, merge, what) for parts in zip(*tables, strict=True)]
        return type(first)(*children) if hasattr(first, "_fields") else type(first)(children)
    try:
        return merge(tables)
    except ValueError as exc:
        raise DataError(f"the {what} are not alike: {exc}.") from exc


def _kinds(tables: Sequence[Any]) -> str:
    return " and ".join(sorted({type(table).__name__ for table in tables}))


def _joined(parts: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
