"""Shapes: the shapes of the first batch, which the others must match."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from trainband.errors import DataError
from trainband.model.batch import examples_in
from trainband.model.variables import PyTree


class Shapes:
    """The shapes of the first batch, which the others must match."""

    def __init__(self, shorter: bool) -> None:
        self._shorter = shorter
        self._first: list[tuple[tuple[int, ...], Any]] = []
        self._structure: Any = None
        self._kind: type | None = None
        self._keys: list[Any] | None = None
        self._quick: list[tuple[Any, tuple[int, ...], Any]] = []

    def check(self, batch: PyTree, number: int) -> None:
        """Compares a batch with the first.

        Raises:
          DataError: its shapes differ, or it has no examples; or the first one holds lists of numbers.
        """
        # Flattening costs 3 us, as much as everything else done with a batch here; most match at a glance.
        kind = type(batch)
        if kind is self._kind and (self._keys is None or list(batch) == self._keys):
            leaves = batch.values() if self._keys is not None else batch
            if len(leaves) == len(self._quick):
                for leaf, (leaf_kind, shape, dtype) in zip(leaves, self._quick, strict=True):
                    if type(leaf) is not leaf_kind or leaf.shape != shape or leaf.dtype is not dtype:
                        break
                else:
                    return
        self._compare(batch, number)

    def _compare(self, batch: PyTree, number: int) -> None:
        if not examples_in(batch):
            raise DataError(f"batch {number} has no examples: its first axis has length 0; leave such batches out.")
        if self._structure is None:
            _require_arrays(batch)
        leaves, structure = jax.tree.flatten(batch)
        shapes = [(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]
        if self._structure is None:
            self._first, self._structure = shapes, structure
            self._remember(batch)
            return
        alike = structure == self._structure
        if alike and self._shorter:
            alike = all(_fits(a, b) for a, b in zip(self._first, shapes, strict=True))
        elif alike:
            alike = shapes == self._first
        if not alike:
            raise DataError(_difference(number, self._first, shapes))

    def _remember(self, batch: PyTree) -> None:
        """Remembers how to recognise a matching batch at a glance, if it is a flat one of arrays."""
        kind = type(batch)
        if kind is not tuple and kind is not dict:
            return
        parts = list(batch.values()) if kind is dict else list(batch)
        arrays = [part for part in parts if isinstance(part, np.ndarray | jax.Array)]
        if len(arrays) == len(parts):
            self._kind, self._keys = kind, list(batch) if kind is dict else None
            self._quick = [(type(array), array.shape, array.dtype) for array in arrays]


def _require_arrays(batch: PyTree) -> None:
    """Refuses lists of numbers, since JAX would take each number for an array."""
    for path, node in jax.tree_util.tree_flatten_with_path(batch, is_leaf=_is_list_of_numbers)[0]:
        if _is_list_of_numbers(node):
            raise DataError(
                f"batch{jax.tree_util.keystr(path)} is a Python list of numbers, but JAX needs an array; pass "
                "np.asarray(...) of it."
            )


def _is_list_of_numbers(node: Any) -> bool:
    return isinstance(node, list) and bool(node) and all(isinstance(one, int | float) for one in node)


def _fits(first: tuple[tuple[int, ...], Any], then: tuple[tuple[int, ...], Any]) -> bool:
    (shape, dtype), (other, other_dtype) = first, then
    return dtype == other_dtype and len(shape) == len(other) and shape[1:] == other[1:] and other[:1] <= shape[:1]


def _difference(
    number: int, first: list[tuple[tuple[int, ...], Any]], shapes: list[tuple[tuple[int, ...], Any]]
) -> str:
    advice = (
        "drop the last, shorter batch of an epoch, pad it, or pass Trainer(fixed_shapes=False) to compile every new "
        "shape"
    )
    if len(first) != len(shapes):
        return f"batch {number} has {len(shapes)} arrays, the first batch had {len(first)}; {advice}."
    for i, (a, b) in enumerate(zip(first, shapes, strict=True)):
        if a != b:
            return f"batch {number}: array {i} is {_shown(b)}, but was {_shown(a)} in the first batch; {advice}."
    return f"batch {number} differs in structure from the first; {advice}."


def _shown(shape: tuple[tuple[int, ...], Any]) -> str:
    return f"{shape[1]}{list(shape[0])}"
