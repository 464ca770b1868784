"""Placement: which ps holds which slice of which variable.

Every task computes the plan itself from the same variables, policy and number of ps, so a policy
must be a pure function of these.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Protocol

from trainband.model.variables import Variable
from trainband.runtime.overrides import override

MIB = 1 << 20

MOST_SLICE_BYTES, LEAST_SLICE_BYTES = 64 * MIB, 1 * MIB
"""The range of the size above which a variable is cut by default: a smaller piece costs more to join than it saves."""
PIECE_BYTES = 8192
"""The cost of a slice besides its bytes: the 8 us measured for its own operations, at the 1 GB/s of an exchange."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows `start` to `stop` (exclusive) of a variable's first axis, on the ps task of index `ps`.

    A scalar is one slice with `start` 0 and `stop` 1.
    """

    variable: Variable
    start: int
    stop: int
    ps: int

    @property
    def whole(self) -> bool:
        """Whether this is the whole variable."""
        return self.start == 0 and self.stop == rows_of(self.variable)

    @property
    def shape(self) -> tuple[int, ...]:
        """The slice's own shape."""
        if not self.variable.shape:
            return ()
        return (self.stop - self.start, *self.variable.shape[1:])

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.variable.nbytes * (self.stop - self.start) // max(1, rows_of(self.variable))


@dataclass(frozen=True, slots=True)
class Placement:
    """The whole plan: every slice, in the order of the variables and of their rows."""

    slices: tuple[Slice, ...]
    ps_count: int

    def on(self, ps: int) -> tuple[Slice, ...]:
        """Returns the slices that ps number `ps` holds."""
        return tuple(piece for piece in self.slices if piece.ps == ps)

    def of(self, variable: Variable) -> tuple[Slice, ...]:
        """Returns the slices of one variable, by rows."""
        return tuple(piece for piece in self.slices if piece.variable == variable)

    def by_variable(self) -> dict[Variable, list[Slice]]:
        """Returns the slices of every variable, by rows."""
        found: dict[Variable, list[Slice]] = {}
        for piece in self.slices:
            found.setdefault(piece.variable, []).append(piece)
        return found


class PlacementPolicy(Protocol):
    """Decides where slices go."""

    def place(self, variables: Sequence[Variable], ps_count: int, *, keep_whole: Collection[str] = ()) -> Placement:
        """Returns the plan for these variables over `ps_count` ps. Variables in `keep_whole` are never sliced."""
        ...


def rows_of(variable: Variable) -> int:
    """Returns how many rows a variable can be split into: its first axis, 1 for a scalar."""
    return variable.shape[0] if variable.shape else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRobin(PlacementPolicy):
    """Slices go to ps 0, 1, 2, ... in turn, in the variables' order, as `tf.train.replica_device_setter` did.

    Args:
      max_slice_bytes: a larger variable is cut by rows into slices of at most this size.
    """

    max_slice_bytes: int = MOST_SLICE_BYTES

    def __post_init__(self) -> None:
        _check(self.max_slice_bytes)

    @override
    def place(self, variables: Sequence[Variable], ps_count: int, *, keep_whole: Collection[str] = ()) -> Placement:
        slices = _cut(variables, ps_count, self.max_slice_bytes, keep_whole)
        return _placed(slices, [i % ps_count for i in range(len(slices))], ps_count)


@dataclass(frozen=True, kw_only=True, slots=True)
class GreedyBytes(PlacementPolicy):
    """Slices go, largest first, to the ps with the smallest load so far (ties: the lowest index).

    The load of a ps is its bytes, and 8 KiB for each slice. Source: Graham 1969, Bounds on Multiprocessing Timing
    Anomalies: never more than 4/3 of the best maximum load.

    Args:
      max_slice_bytes: a larger variable is cut by rows into slices of at most this size. By default the bytes of all
        variables divided by the number of ps, but at least 1 MiB and at most 64 MiB.
    """

    max_slice_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_slice_bytes is not None:
            _check(self.max_slice_bytes)

    @override
    def place(self, variables: Sequence[Variable], ps_count: int, *, keep_whole: Collection[str] = ()) -> Placement:
        most = self.max_slice_bytes
        if most is None:
            share = math.ceil(sum(variable.nbytes for variable in variables) / ps_count)
            most = min(max(share, LEAST_SLICE_BYTES), MOST_SLICE_BYTES)
        slices = _cut(variables, ps_count, most, keep_whole)
        load = [0] * ps_count
        home = [0] * len(slices)
        for i in sorted(range(len(slices)), key=lambda i: -slices[i].nbytes):
            home[i] = min(range(ps_count), key=load.__getitem__)
            load[home[i]] += slices[i].nbytes + PIECE_BYTES
        return _placed(slices, home, ps_count)


def _check(max_slice_bytes: int) -> None:
    if max_slice_bytes < 1:
        raise ValueError(f"max_slice_bytes must be at least 1 byte, got {max_slice_bytes}.")


def _cut(
    variables: Sequence[Variable], ps_count: int, max_slice_bytes: int, keep_whole: Collection[str]
) -> list[Slice]:
    """Cuts each variable into slices of nearly equal rows, within the limit if rows allow it; all on ps 0 for now.

    With one ps nothing is cut: a piece has nowhere else to go, and joining pieces costs a copy.
    """
    pieces = []
    for variable in variables:
        rows = rows_of(variable)
        count = 1
        if ps_count > 1 and variable.nbytes > max_slice_bytes and variable.name not in keep_whole:
            most_rows = max(1, max_slice_bytes // (variable.nbytes // rows))
            count = math.ceil(rows / most_rows)
        edges = [rows * i // count for i in range(count + 1)]
        pieces += [Slice(variable, start, stop, 0) for start, stop in pairwise(edges)]
    return pieces


def _placed(slices: Sequence[Slice], homes: Sequence[int], ps_count: int) -> Placement:
    """Returns the plan with these homes, with the slices of each variable swapped to be contiguous on each ps.

    They have nearly the same size, so no load changes; and a ps can send its rows in one piece.
    """
    placed: list[Slice] = []
    for _, group in groupby(zip(slices, homes, strict=True), key=lambda pair: pair[0].variable.name):
        pieces, places = zip(*group, strict=True)
        placed += [replace(piece, ps=ps) for piece, ps in zip(pieces, sorted(places), strict=True)]
    return Placement(tuple(placed), ps_count)
