"""TrainState: the values that a training run changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from trainband.model.contents import check_settings
from trainband.model.random_keys import is_key
from trainband.model.variables import PyTree, path_name


class TrainState(NamedTuple):
    """The values that a training run changes.

    Attributes:
      params, optimizer, state: the params, the optimizer's state and the model's.
      carry: see `GradientFunction`.
      ended: more than 0 once some process has asked for the end: no later step changes anything. `None` for a single
        process.
      left: how many more updates this training may make: with none left, no step changes anything. `None` unless
        several processes compute several steps in a call, the last of which may have too many.
    """

    params: PyTree
    optimizer: PyTree
    state: PyTree
    carry: PyTree
    ended: Any
    left: Any = None


def with_settings(state: PyTree, settings: Mapping[str, float]) -> PyTree:
    """Returns an optimizer's state with these numbers in place of its own.

    Raises:
      ModelError: it has no such scalar.
    """
    check_settings(settings, scalars_of(state))

    def set_(path: Any, leaf: Any) -> Any:
        value = settings.get(path_name(path))
        return leaf if value is None else placed(np.asarray(value, leaf.dtype), leaf.sharding)

    return jax.tree_util.tree_map_with_path(set_, state)


def placed(value: Any, sharding: Sharding) -> jax.Array:
    """Places an array that every process has; each process takes its parts."""
    value = np.asarray(value)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def scalars_of(state: PyTree) -> dict[str, Any]:
    """Returns the numbers of an optimizer's state by their paths, in order."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {path_name(path): leaf for path, leaf in leaves if leaf.shape == () and not is_key(leaf)}


def with_setting(state: PyTree, which: jax.Array, value: jax.Array) -> PyTree:
    """Returns an optimizer's state with another value for scalar `which` (from 1; 0: none); traceable."""
    numbers = {name: number for number, name in enumerate(scalars_of(state), 1)}

    def told(path: Any, leaf: Any) -> Any:
        number = numbers.get(path_name(path))
        return leaf if number is None else jnp.where(which == number, value.astype(leaf.dtype), leaf)

    return jax.tree_util.tree_map_with_path(told, state)
