"""Tables of a model: which ids a batch has, and how the loss gets their rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError, ModelError
from trainband.model.variables import PyTree
from trainband.rows.string_ids import hashed
from trainband.rows.table import Table

IdsOf = Callable[[PyTree], Any]
"""From a batch to an array of ids."""
Features = Mapping[str, tuple[Table, IdsOf]]
"""By name, a table and how to find the ids that are looked up in it."""


class WithRows(NamedTuple):
    """The params, and the rows that were looked up, by feature: the gradient is taken of both."""

    params: PyTree
    rows: dict[str, Any]


class BatchIds:
    """The ids of one batch, by feature. All are equal, so that they can accompany a batch as a pytree's metadata."""

    def __init__(self, ids: dict[str, NDArray[np.uint64]]) -> None:
        self.of_feature = ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchIds)

    def __hash__(self) -> int:
        return 0


@partial(jax.tree_util.register_dataclass, data_fields=("batch",), meta_fields=("ids",))
@dataclass(frozen=True, slots=True)
class BatchWithIds:
    """A batch, without the arrays that JAX cannot take, and its ids."""

    batch: PyTree
    ids: BatchIds


class BatchWithRows(NamedTuple):
    """A batch and the rows of its ids, by feature: each of the shape of the ids and the table's dim."""

    batch: PyTree
    rows: dict[str, Any]


class Tables:
    """The tables of a model and the features that are looked up in them.

    Args:
      features: by name, the table and a function from a batch to an array of ids, of any shape; several features may
        share a table.

    Raises:
      ModelError: a feature is not such a pair, or two tables have one name.
    """

    def __init__(self, features: Features) -> None:
        tables: dict[str, Table] = {}
        for name, feature in features.items():
            match feature:
                case (Table() as table, ids_of) if callable(ids_of):
                    if tables.setdefault(table.name, table) != table:
                        raise ModelError(f"tables: two tables have the name {table.name!r}; give each its own.")
                case _:
                    raise ModelError(
                        f"tables[{name!r}] must be a pair of a trainband.Table and a function from a batch to its ids, "
                        f"got {type(feature).__name__}."
                    )
        self.features = dict(features)
        self.tables = tuple(tables.values())
        """Each table once."""

    def __bool__(self) -> bool:
        return bool(self.tables)

    def numbers(self) -> list[tuple[int, list[str]]]:
        """For each table its number, and the features looked up in it."""
        return [
            (number, [name for name, (of, _) in self.features.items() if of is table or of == table])
            for number, table in enumerate(self.tables)
        ]

    def split(self, batch: PyTree) -> BatchWithIds:
        """Takes the ids out of a batch.

        Arrays of 64-bit ids and of texts do not go to the device, which would keep 32 bits of them or none: the loss
        finds None in their place.

        Raises:
          DataError: a feature's ids are not integers or texts.
        """
        if isinstance(batch, BatchWithIds):
            return batch
        found = {name: ids_of(batch) for name, (_, ids_of) in self.features.items()}
        wide = [array for array in found.values() if _is_wide(array)]
        if wide:
            batch = jax.tree.map(lambda leaf: None if _is_wide(leaf) and _overlaps(leaf, wide) else leaf, batch)
        return BatchWithIds(batch, BatchIds({name: _as_ids(name, array) for name, array in found.items()}))

    def taking_rows(self, function: Callable[..., Any], *, has_state: bool, takes_key: bool) -> Callable[..., Any]:
        """Returns a function of `WithRows` in place of params, from one that takes the rows before the batch."""
        if takes_key and not has_state and _required(function) == 2:
            raise ModelError("with tables, the loss takes the rows before the batch: loss(params, rows, batch).")
        if has_state and takes_key:
            return lambda both, state, batch, key: function(both.params, state, both.rows, batch, key)
        if has_state:
            return lambda both, state, batch: function(both.params, state, both.rows, batch)
        if takes_key and _required(function) == 4:
            return lambda both, batch, key: function(both.params, both.rows, batch, key)
        return lambda both, batch: function(both.params, both.rows, batch)


def _required(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in positional)


def _overlaps(leaf: Any, arrays: list[Any]) -> bool:
    return any(leaf is array or np.may_share_memory(leaf, array) for array in arrays)


def _is_wide(array: Any) -> bool:
    if not isinstance(array, np.ndarray):
        return False
    return array.dtype.kind in "USO" or (array.dtype.itemsize == 8 and not jax.config.jax_enable_x64)


def _as_ids(feature: str, given: Any) -> NDArray[np.uint64]:
    array = np.asarray(given)
    if array.dtype.kind in "USO":
        try:
            return hashed(array)
        except DataError as exc:
            raise DataError(f"the ids of tables[{feature!r}]: {exc}") from None
    if array.dtype.kind not in "iu":
        raise DataError(f"the ids of tables[{feature!r}] must be integers or texts, got {array.dtype}.")
    return array.astype(np.uint64 if array.dtype.kind == "u" else np.int64, copy=False).view(np.uint64)
