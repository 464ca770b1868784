"""Contents: the rows of tensors that make up each buffer of a job.

A checkpoint knows tensors by name, not blocks or ps, so state saved from one placement or strategy can be
restored to any other. A tensor's name begins with its kind:

- `params/hidden/kernel`: a variable;
- `model_state/mean`: a variable of the model state;
- `optimizer/0/mu/hidden/kernel`: a leaf of the optimizer state that belongs to a variable, by the leaf's path;
  `optimizer/0/mu` if the params are one bare array;
- `optimizer/0/count`: any other leaf of the optimizer state; every ps has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainband.checkpoint.manifest import Piece
from trainband.errors import ModelError
from trainband.model.layout import ShardLayout
from trainband.model.placement import Slice, rows_of
from trainband.model.variables import LONE_LEAF, PyTree, Variable, Variables, path_name

Contents = tuple[tuple[Piece, ...], ...]
"""For each buffer, its pieces in order."""

Path = tuple[Any, ...]
"""A leaf's keys, as `jax.tree_util.tree_flatten_with_path` returns them."""


@dataclass(frozen=True, slots=True)
class Held:
    """A leaf of the params as an optimizer sees them: its path and shape, and its slices."""

    path: Path
    shape: tuple[int, ...]
    slices: tuple[Slice, ...]


def tensor_of(variable: Variable) -> str:
    """Returns the name of a variable's tensor in a checkpoint."""
    return f"params/{variable.name}" if variable.trained else f"model_{variable.name}"


def contents_of_blocks(shard: ShardLayout) -> Contents:
    """Returns the contents of a shard's param blocks."""
    return tuple(tuple(_piece(shard.slices[i]) for i in block.members) for block in shard.blocks)


def contents_of_variables(variables: Variables) -> Contents:
    """Returns the contents of all variables as wholes, in order."""
    return tuple((_piece(Slice(variable, 0, rows_of(variable), 0)),) for variable in variables.entries)


def contents_of_state(state: PyTree, held: Sequence[Held]) -> Contents | None:
    """Returns the contents of an optimizer state's leaves; `None` if one is neither of variables' rows nor its own.

    Args:
      state: the optimizer's, with shapes and dtypes as leaves, and no typed random keys (see `without_keys`).
      held: the params that it was made for.

    Raises:
      ValueError: a leaf's path or dtype cannot be stored in a checkpoint.
    """
    by_path = {leaf.path: leaf for leaf in held}
    contents = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        pieces = _state_pieces(path, leaf, by_path)
        if pieces is None:
            return None
        contents.append(pieces)
    return tuple(contents)


def leaf_of_number(contents: Contents, name: str) -> int | None:
    """Returns the index of the leaf of an optimizer state that is the number `name`; `None` unless exactly one is.

    `optax.inject_hyperparams` and Keras's optimizers keep their learning rate there.
    """
    found = [
        leaf
        for leaf, pieces in enumerate(contents)
        if len(pieces) == 1 and pieces[0].shape == () and pieces[0].tensor.rpartition("/")[2] == name
    ]
    return found[0] if len(found) == 1 else None


def check_settings(settings: Iterable[str], scalars: Iterable[str]) -> None:
    """Raises `ModelError` unless an optimizer's state has all the numbers to set."""
    known = list(scalars)
    for name in settings:
        if name not in known:
            raise ModelError(
                f"the optimizer's state has no number {name!r} that could be set; it has {', '.join(known) or 'none'}."
            )


def _state_pieces(path: Path, leaf: Any, by_path: dict[Path, Held]) -> tuple[Piece, ...] | None:
    dtype = np.dtype(leaf.dtype).name
    for cut in range(len(path) + 1):  # the longest suffix of the path that is a variable's
        held = by_path.get(path[cut:])
        if held is None:
            continue
        slices, first = held.slices, held.slices[0]
        if leaf.shape == held.shape:
            return tuple(
                Piece(_state_name(path[:cut], s.variable), s.variable.shape, dtype, s.start, s.stop) for s in slices
            )
        name = _state_name(path[:cut], first.variable)
        if len(slices) > 1:
            return None  # a smaller leaf of a block of several variables
        if leaf.shape and first.variable.shape and not first.whole and leaf.shape[0] == first.stop - first.start:
            shape = (rows_of(first.variable), *leaf.shape[1:])  # a number for each row, say
            return (Piece(name, shape, dtype, first.start, first.stop),)
        return (_whole(name, leaf.shape, dtype),)
    return (_whole(_state_name(path, None), leaf.shape, dtype),)


def _state_name(path: Path, variable: Variable | None) -> str:
    """Returns the name of a leaf; a bare array has no path of its own, so it adds nothing."""
    parts = [path_name(path)] if path else []
    if variable is not None and variable.name != LONE_LEAF:
        parts.append(variable.name)
    return "/".join(["optimizer", *(parts or ["state"])])


def _piece(piece: Slice) -> Piece:
    variable = piece.variable
    return Piece(tensor_of(variable), variable.shape, variable.dtype, piece.start, piece.stop)


def _whole(name: str, shape: Sequence[int], dtype: str) -> Piece:
    shape = tuple(int(n) for n in shape)
    return Piece(name, shape, dtype, 0, shape[0] if shape else 1)
