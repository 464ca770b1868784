"""Variables: the leaves of a params pytree, each with a name, a shape and a dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.errors import ModelError

PyTree = Any
"""Any nest of containers that JAX knows, with arrays as leaves."""

MOST_BYTES = (1 << 63) - 1
"""Limit for one variable: the largest size that NumPy can count."""

LONE_LEAF = "params"
"""The name of the only variable if the params are one bare array."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One leaf of the params or of the model state, by its path, such as `hidden/kernel`.

    Attributes:
      trained: whether gradients change it; model state (such as running averages) is replaced by workers' pushes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool = True

    def __post_init__(self) -> None:
        """Checks fields that may have come from another task.

        Raises:
          ModelError: no array has this name, shape and dtype.
        """
        try:
            itemsize = jnp.dtype(self.dtype).itemsize
            known = self.name.isprintable() and all(type(length) is int and length >= 0 for length in self.shape)
        except (TypeError, ValueError, AttributeError):
            known = False
        if not known or math.prod(length or 1 for length in self.shape) * itemsize > MOST_BYTES:
            raise ModelError(f"{self.name!r} of {self.dtype!r} and shape {self.shape!r} is not a variable.")

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.size * jnp.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables of a model: those of the params in their pytree's order, then those of the model state."""

    entries: tuple[Variable, ...]
    treedef: jax.tree_util.PyTreeDef
    state_treedef: jax.tree_util.PyTreeDef

    @classmethod
    def of(cls, params: PyTree, state: PyTree = None) -> Variables:
        """Names the leaves of `params` and `state` (arrays, or anything with a shape and a dtype).

        The names of the state begin with `state/`.

        Raises:
          ModelError: there are no leaves, a leaf is not a floating-point array, or its name is a duplicate or
            unusable (it becomes part of file names and of URLs).
        """
        leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
        if not leaves:
            raise ModelError("init() returned params with no variables in them; return a pytree of arrays.")
        state_leaves, state_treedef = jax.tree_util.tree_flatten_with_path(state)
        entries = tuple(_variable(path, leaf) for path, leaf in leaves)
        entries += tuple(_state_variable(path, leaf) for path, leaf in state_leaves)
        first: dict[str, tuple[Any, ...]] = {}
        for (path, _), entry in zip([*leaves, *state_leaves], entries, strict=True):
            if entry.name in first:
                raise ModelError(
                    f"two variables have the name {entry.name!r}: {jax.tree_util.keystr(first[entry.name])} and "
                    f"{jax.tree_util.keystr(path)} of the params; rename one of them."
                )
            first[entry.name] = path
        return cls(entries, treedef, state_treedef)

    @property
    def trained(self) -> tuple[Variable, ...]:
        """The variables of the params."""
        return tuple(entry for entry in self.entries if entry.trained)

    @property
    def paths(self) -> list[tuple[Any, ...]]:
        """The keys that lead to each trained variable."""
        numbers = self.unflatten(range(self.treedef.num_leaves))
        return [path for path, _ in jax.tree_util.tree_flatten_with_path(numbers)[0]]

    def unflatten(self, leaves: Sequence[Any]) -> PyTree:
        """Returns the params pytree with these leaves."""
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

    def split(self, leaves: Sequence[Any]) -> tuple[PyTree, PyTree]:
        """Returns (params, state) with the values of all the variables."""
        count = self.treedef.num_leaves
        return self.unflatten(leaves[:count]), jax.tree_util.tree_unflatten(self.state_treedef, leaves[count:])


def path_name(path: tuple[Any, ...]) -> str:
    """Joins a leaf's keys to one name, such as `hidden/kernel`."""
    return "/".join(_key(key) for key in path)


def _variable(path: tuple[Any, ...], leaf: Any) -> Variable:
    name = path_name(path) if path else LONE_LEAF
    where = f"the variable at params{jax.tree_util.keystr(path)}"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or not name.isprintable() or "\\" in name:
        raise ModelError(
            f"{where} would be named {name!r}, which cannot be used: a name is made of printable parts joined "
            "by '/', none of them empty, '.' or '..', with no backslash; rename the key."
        )
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise ModelError(
            f"{where} is {leaf!r} of type {type(leaf).__name__}; every leaf of the params must be an array."
        )
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise ModelError(
            f"{where} ({name}) has dtype {leaf.dtype}, which gradients cannot train; keep only floating-point arrays "
            "in the params and close over the others."
        )
    return Variable(name, tuple(int(n) for n in leaf.shape), np.dtype(leaf.dtype).name)


def _state_variable(path: tuple[Any, ...], leaf: Any) -> Variable:
    name = "/".join(["state", *([path_name(path)] if path else [])])
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise ModelError(
            f"the model state at {name} is a typed random key; keep its data, jax.random.key_data(key), and restore "
            "the key in the loss: jax.random.wrap_key_data(data)."
        )
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype") or not np.issubdtype(np.dtype(leaf.dtype), np.generic):
        raise ModelError(f"the model state at {name} is {leaf!r}; every leaf of it must be an array of numbers.")
    return Variable(name, tuple(int(n) for n in leaf.shape), np.dtype(leaf.dtype).name, trained=False)


def _key(key: Any) -> str:
    match key:
        case jax.tree_util.DictKey(key=k) | jax.tree_util.FlattenedIndexKey(key=k):
            return str(k)
        case jax.tree_util.SequenceKey(idx=i):
            return str(i)
        case jax.tree_util.GetAttrKey(name=n):
            return str(n)
        case _:
            return str(key).strip("[].'\"")
