"""Description: where each variable is stored, for people, before anything is allocated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from trainband.model.optimizer import Optimizer
from trainband.model.placement import Placement
from trainband.model.random_keys import is_key
from trainband.model.variables import PyTree, Variables
from trainband.runtime.formatting import size as in_words
from trainband.spmd.sharding import axes_of, pieces

FOLDED = 3
"""From this many variables on, those that differ only in numbers of their paths share one line."""


@dataclass(frozen=True, slots=True)
class Row:
    """The place of one variable.

    Attributes:
      name: its path.
      shape: of the whole.
      dtype: of its elements.
      where: as text.
      nbytes: on each holder.
      whole: bytes of the whole variable.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    where: str
    nbytes: Mapping[str, int]
    whole: int


@dataclass(frozen=True, slots=True)
class Description:
    """The place of each variable, and the bytes on each device; its `str` is a table.

    Attributes:
      title: the strategy and the devices or ps that it spreads over.
      rows: one for each variable.
      optimizer: bytes of the optimizer state on each device; empty if it was not requested.
    """

    title: str
    rows: tuple[Row, ...]
    optimizer: Mapping[str, int]

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes on each device: of the variables, and of the optimizer state if known."""
        total = dict(self.optimizer)
        for row in self.rows:
            for holder, count in row.nbytes.items():
                total[holder] = total.get(holder, 0) + count
        return total

    def __str__(self) -> str:
        lines = [self.title, *self._totals()]
        table = list(self._folded())
        widths = [max((len(line[i]) for line in table), default=0) for i in range(3)]
        lines += [
            f"  {name:<{widths[0]}}  {kind:<{widths[1]}}  {nbytes:>{widths[2]}}  {where}"
            for name, kind, nbytes, where in table
        ]
        return "\n".join(lines)

    def _folded(self) -> Iterator[tuple[str, str, str, str]]:
        """Yields name, kind, total size and place; variables that differ only in numbers of their paths share one."""
        alike: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            kind = f"{row.dtype}[{','.join(map(str, row.shape))}]"
            alike.setdefault((re.sub(r"\d+", "*", row.name), kind, row.where), []).append(row)
        for (pattern, kind, where), rows in alike.items():
            size = in_words(rows[0].whole)
            if len(rows) < FOLDED:
                yield from ((row.name, kind, size, where) for row in rows)
            else:
                yield f"{pattern}  ({len(rows)} of them)", kind, f"each {size}", where

    def _totals(self) -> Iterator[str]:
        """Yields the bytes of each device; successive devices with the same share get one line."""
        runs: list[tuple[list[str], int]] = []
        for holder, count in self.nbytes.items():
            if runs and runs[-1][1] == count:
                runs[-1][0].append(holder)
            else:
                runs.append(([holder], count))
        what = "variables and optimizer state" if self.optimizer else "variables"
        for holders, count in runs:
            names = holders[0] if len(holders) == 1 else f"{holders[0]} to {holders[-1]}, each"
            yield f"  {names}: {in_words(count)} of {what}"


def described(
    title: str,
    variables: Variables,
    specs: Sequence[PartitionSpec],
    mesh: Mesh,
    state: PyTree,
    holders: Sequence[str],
) -> Description:
    """Returns the places of the variables on a mesh.

    Args:
      specs: of each variable.
      state: leaves (shape and dtype, spec) of the optimizer state; empty to omit it.
      holders: the devices' names, in the mesh's order.
    """
    rows = []
    for variable, spec in zip(variables.entries, specs, strict=True):
        share = variable.nbytes // pieces(spec, mesh)
        rows.append(
            Row(
                variable.name,
                variable.shape,
                variable.dtype,
                _where(spec, mesh),
                dict.fromkeys(holders, share),
                variable.nbytes,
            )
        )
    optimizer = sum(_nbytes(kind) // pieces(spec, mesh) for kind, spec in state)
    return Description(title, tuple(rows), dict.fromkeys(holders, optimizer) if state else {})


def described_on_ps(
    variables: Variables, placement: Placement, names: Sequence[str], params: PyTree, optimizer: Optimizer | None
) -> Description:
    """Returns the places of the variables on the ps.

    Args:
      names: of the ps.
      optimizer: its state is included: leaves of variables are where these are, and the others on every ps.
    """
    rows = []
    pieces_of = placement.by_variable()
    for variable in variables.entries:
        shares: dict[str, int] = {}
        words = []
        for piece in pieces_of[variable]:
            shares[names[piece.ps]] = shares.get(names[piece.ps], 0) + piece.nbytes
            words.append(names[piece.ps] if piece.whole else f"{names[piece.ps]} (rows {piece.start} to {piece.stop})")
        rows.append(Row(variable.name, variable.shape, variable.dtype, ", ".join(words), shares, variable.nbytes))
    state: dict[str, int] = {}
    if optimizer is not None:
        by_path = dict(zip(variables.paths, variables.trained, strict=True))
        by_name = {row.name: row for row in rows}
        for path, leaf in jax.tree_util.tree_flatten_with_path(jax.eval_shape(optimizer.init, params))[0]:
            owner = next((by_path[path[cut:]] for cut in range(len(path) + 1) if path[cut:] in by_path), None)
            row = None if owner is None else by_name.get(owner.name)
            for name in names:
                share = 1.0 if row is None or owner is None else row.nbytes.get(name, 0) / max(1, owner.nbytes)
                state[name] = state.get(name, 0) + round(_nbytes(leaf) * share)
    return Description(f"ParameterServer: {len(names)} ps", tuple(rows), state)


def _nbytes(kind: Any) -> int:
    if is_key(kind):
        kind = jax.eval_shape(jax.random.key_data, kind)
    return math.prod(map(int, kind.shape)) * int(np.dtype(kind.dtype).itemsize)


def _where(spec: PartitionSpec, mesh: Mesh) -> str:
    parts = [
        f"axis {number} in {math.prod(mesh.shape[axis] for axis in axes_of(entry))} over {' x '.join(axes_of(entry))}"
        for number, entry in enumerate(spec)
        if axes_of(entry)
    ]
    if mesh.size == 1:
        return "whole"
    return ", ".join(parts) or f"whole, on each of {mesh.size} devices"
