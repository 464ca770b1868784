"""Typed random keys inside a state: files and parameter servers know only their data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from trainband.model.variables import PyTree


def is_key(leaf: Any) -> bool:
    """Whether an array is of typed random keys."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def without_keys(state: PyTree) -> PyTree:
    """A state with the data of random keys in place of the keys, which no file and no ps knows; traceable."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, state)


def key_kinds(state: PyTree) -> list[Any]:
    """Of each leaf, what kind of random key it is; `None` if it is none. Traceable."""
    return [jax.random.key_impl(leaf) if is_key(leaf) else None for leaf in jax.tree.leaves(state)]


def with_keys(state: PyTree, kinds: Sequence[Any]) -> PyTree:
    """The inverse of `without_keys`; traceable. `kinds` is what `key_kinds` told."""
    leaves, tree = jax.tree.flatten(state)
    wrapped = [
        leaf if kind is None else jax.random.wrap_key_data(leaf, impl=kind)
        for leaf, kind in zip(leaves, kinds, strict=True)
    ]
    return jax.tree.unflatten(tree, wrapped)
