"""Typed random keys inside a state: files and parameter servers hold only their data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from trainband.model.variables import PyTree


def is_key(leaf: Any) -> bool:
    """Whether an array holds typed random keys."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def without_keys(state: PyTree) -> PyTree:
    """Replaces the random keys of a state by their data, for files and ps; traceable."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, state)


def key_kinds(state: PyTree) -> list[Any]:
    """Returns the kind of random key of each leaf, `None` if it is not one. Traceable."""
    return [jax.random.key_impl(leaf) if is_key(leaf) else None for leaf in jax.tree.leaves(state)]


def with_keys(state: PyTree, kinds: Sequence[Any]) -> PyTree:
    """Inverts `without_keys`; traceable. `kinds` is the result of `key_kinds`."""
    leaves, tree = jax.tree.flatten(state)
    wrapped = [
        leaf if kind is None else jax.random.wrap_key_data(leaf, impl=kind)
        for leaf, kind in zip(leaves, kinds, strict=True)
    ]
    return jax.tree.unflatten(tree, wrapped)
