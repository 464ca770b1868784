"""The values of a training on a mesh: where each lies, and what a checkpoint has of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec, Sharding

from trainband.checkpoint import Checkpoint
from trainband.model.model import Shapes
from trainband.model.random_keys import is_key, key_kinds, with_keys, without_keys
from trainband.model.variables import PyTree, Variables, path_name
from trainband.ps.contents import Contents, Held, check_settings, contents_of_state, contents_of_variables
from trainband.ps.placement import Slice, rows_of
from trainband.ps.saver import buffer_of
from trainband.spmd.sharding import state_specs


class TrainState(NamedTuple):
    """What a training changes.

    Attributes:
      params, optimizer, state: the params, the optimizer's state and the model's.
      carry: see `GradientFunction`.
      ended: more than 0 once some process has asked for the end: no step changes anything any more. `None` where there
        is one process.
      left: how many more updates this training may make: with none left, no step changes anything. `None` but where
        several processes compute several steps in a call, the last of which may have some too many.
    """

    params: PyTree
    optimizer: PyTree
    state: PyTree
    carry: PyTree
    ended: Any
    left: Any = None


copied = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


def laid_out(
    shapes: Shapes,
    specs: Sequence[PartitionSpec],
    sharding: Callable[[PartitionSpec], Sharding],
    *,
    ended: bool,
    left: bool,
) -> TrainState:
    """Where each value lies, a sharding for each leaf.

    Args:
      shapes: of the model.
      specs: how each variable is split.
      sharding: makes one of a spec.
      ended, left: whether this training has what `TrainState` call so.
    """
    variables, everywhere = shapes.variables, sharding(PartitionSpec())
    leaves = [sharding(spec) for spec in state_specs(shapes.optimizer, variables, specs)]
    return TrainState(
        variables.unflatten([sharding(spec) for spec in specs]),
        jax.tree.unflatten(jax.tree.structure(shapes.optimizer), leaves),
        everywhere,
        everywhere,
        everywhere if ended else None,
        everywhere if left else None,
    )


def contents_of(values: TrainState, variables: Variables) -> Contents:
    """What a checkpoint has of them."""
    held = [
        Held(path, variable.shape, (Slice(variable, 0, rows_of(variable), 0),))
        for path, variable in zip(variables.paths, variables.trained, strict=True)
    ]
    state = contents_of_state(jax.eval_shape(without_keys, values.optimizer), held)
    assert state is not None  # every leaf that belongs to a variable belongs to one alone
    return (*contents_of_variables(variables), *state)


def saved_of(values: TrainState) -> PyTree:
    """The values that a checkpoint has, in the order of its contents."""
    return without_keys((values.params, values.state, values.optimizer))


def restored(values: TrainState, variables: Variables, checkpoint: Checkpoint, *, optimizer: bool) -> TrainState:
    """A checkpoint's values, where these lie; with `optimizer`, its state too.

    Raises:
      CheckpointError: it is of another model or optimizer.
      DamagedCheckpoint: it cannot be read.
    """
    contents, kept = contents_of(values, variables), (values.params, values.state, values.optimizer)
    if not optimizer:
        contents, kept = contents[: len(variables.entries)], (values.params, values.state, ())
    leaves, tree = jax.tree.flatten(without_keys(kept))
    checkpoint.require([piece for pieces in contents for piece in pieces], params_only=not optimizer)
    found = [buffer_of(checkpoint, pieces) for pieces in contents]
    laid = [placed(value.reshape(leaf.shape), leaf.sharding) for value, leaf in zip(found, leaves, strict=True)]
    params, state, optimizer_state = with_keys(jax.tree.unflatten(tree, laid), key_kinds(kept))
    values = values._replace(params=params, state=state)
    return values._replace(optimizer=optimizer_state) if optimizer else values


def with_settings(state: PyTree, settings: Mapping[str, float]) -> PyTree:
    """An optimizer's state, as its own arrays or what can replace them, with these numbers in place of its own.

    Raises:
      ModelError: it has no such scalar.
    """
    check_settings(settings, scalars_of(state))

    def set_(path: Any, leaf: Any) -> Any:
        value = settings.get(path_name(path))
        return leaf if value is None else placed(np.asarray(value, leaf.dtype), leaf.sharding)

    return jax.tree_util.tree_map_with_path(set_, state)


def placed(value: Any, sharding: Sharding) -> jax.Array:
    """An array that every process has, where it belongs; each process takes its parts."""
    value = np.asarray(value)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def placed_all(tree: PyTree, sharding: Sharding) -> PyTree:
    """See `placed`: all where one belongs."""
    return jax.tree.map(lambda leaf: placed(leaf, sharding), tree)


def scalars_of(state: PyTree) -> dict[str, Any]:
    """The numbers of an optimizer's state by their paths, in order."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {path_name(path): leaf for path, leaf in leaves if leaf.shape == () and not is_key(leaf)}


def with_setting(state: PyTree, which: jax.Array, value: jax.Array) -> PyTree:
    """An optimizer's state with another value for its scalar `which`, from 1; for none where that is 0; traceable."""
    numbers = {name: number for number, name in enumerate(scalars_of(state), 1)}

    def told(path: Any, leaf: Any) -> Any:
        number = numbers.get(path_name(path))
        return leaf if number is None else jnp.where(which == number, value.astype(leaf.dtype), leaf)

    return jax.tree_util.tree_map_with_path(told, state)
