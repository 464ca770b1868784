"""ShardedState: the train state of a job on its mesh, and the exchanges that make, gather and restore it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from trainband.checkpoint import Checkpoint
from trainband.checkpoint.reader import buffer_of
from trainband.model.contents import Contents, Held, contents_of_state, contents_of_variables
from trainband.model.first_values import first_values
from trainband.model.mesh_context import on_mesh
from trainband.model.model import Given, Model
from trainband.model.placement import Slice, rows_of
from trainband.model.random_keys import key_kinds, with_keys, without_keys
from trainband.model.variables import PyTree
from trainband.model.worker_state import WorkerState
from trainband.runtime.waiting import Say
from trainband.spmd.agreement import MAKES, different_from_chief, require_one_program
from trainband.spmd.process_group import Group
from trainband.spmd.sharding import Rules, state_specs
from trainband.spmd.train_state import TrainState, placed


class ShardedState:
    """The values that a job trains: params, model state, optimizer state and the steps' carry.

    If they are in parts over processes, reading them whole is an exchange in which all processes take part.

    Args:
      model: what is trained.
      mesh: the devices.
      group: the processes that own them.
      rules: how the variables are split over them.
      central: the CPU, if it keeps the params.
      remainder: see `BatchSharding`; the same on all processes.
      counts_down: whether the device counts the updates that are left, see `TrainState.left`.
      say: prints lines for the user.

    Raises:
      ModelMismatch: another process trains something else.
    """

    now: TrainState
    """As of the last call that was begun; set by `make_first`."""

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        group: Group,
        *,
        rules: Rules,
        central: jax.Device | None,
        remainder: str,
        counts_down: bool,
        say: Say,
    ) -> None:
        self._model = model
        self._mesh = mesh
        self._group = group
        self._central = central
        self._say = say
        self.shapes = model.shapes()  # refuses params that no strategy could train
        self.variables = self.shapes.variables
        self._several = group.count > 1
        specs = rules(self.variables.trained, mesh)
        if self._several:
            require_one_program(group, model, self.shapes, mesh, specs, remainder)
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        everywhere, of_state = (
            self._sharding(PartitionSpec()),
            state_specs(self.shapes.optimizer, self.variables, specs),
        )
        self.where = TrainState(
            self.variables.unflatten(list(map(self._sharding, specs))),
            jax.tree.unflatten(jax.tree.structure(self.shapes.optimizer), map(self._sharding, of_state)),
            everywhere,
            everywhere,
            everywhere if self._several else None,
            everywhere if counts_down else None,
        )
        """A sharding for each leaf of a part, or one for all."""
        whole = all(leaf.is_fully_replicated for leaf in jax.tree.leaves(self.where))
        self.in_parts = self._several and not whole
        """Whether no process has all of them."""
        # One function for all calls, so that it is compiled once for each shape.
        self._replicate = jax.jit(lambda leaf: leaf, out_shardings=self._everywhere)

    def _sharding(self, spec: PartitionSpec) -> Sharding:
        return NamedSharding(self._mesh, spec) if self._central is None else SingleDeviceSharding(self._central)

    def make_first(self, first_carry: Callable[[PyTree], PyTree]) -> None:
        """Makes the first values in place; with several processes, the chief's count."""
        model, where = self._model, self.where
        with self._group.watched():
            if isinstance(model.init, Given):  # as constants of a program they would be compiled into it
                params, state = self.broadcast((model.first_params(), model.first_state()))
                params = jax.tree.map(placed, params, where.params)
                state = placed_at(where.state, state)
            else:
                params = self._unified(self._first(model.first_params, where.params), "first params")
                state = self._unified(self._first(model.first_state, where.state), "first model state")
            optimizer = self._made(model.optimizer.init, where.optimizer, params)
            carry = self._made(first_carry, where.carry, params)
            ended = self._made(lambda: jnp.zeros(()), where.ended) if self._several else None
        self.now = TrainState(params, optimizer, state, carry, ended)

    def _first(self, function: Callable[[], PyTree], where: PyTree) -> PyTree:
        """Returns first values, computed in place."""
        return first_values(self._on_mesh(function), where=where)

    def _made(self, function: Callable[..., PyTree], where: PyTree, *given: PyTree) -> PyTree:
        """Returns a function's result, computed in place."""
        return jax.jit(self._on_mesh(function), out_shardings=where)(*given)

    def _on_mesh(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        return on_mesh(function, self._mesh if self._central is None else None, self._model.axes)

    def broadcast(self, values: PyTree) -> PyTree:
        """Returns the chief's values on all processes."""
        if not self._several:
            return values
        self._group.check()
        with self._group.watched():
            return broadcast_one_to_all(values, is_source=self._group.is_chief)

    def _unified(self, values: PyTree, what: str) -> PyTree:
        """Returns the chief's values if whole: `init` may draw its own numbers, or machines may round differently."""
        if not self._several:
            return values
        kinds = key_kinds(values)
        leaves, tree = jax.tree.flatten(without_keys(values))
        mine = {number: own(leaf) for number, leaf in enumerate(leaves) if leaf.is_fully_replicated}
        others = different_from_chief(self._group, what, list(mine.values()), MAKES)
        if others:
            if self._group.is_chief:
                self._say(f"the {what} of {others} differ from {self._group.task}'s; all begin with the latter")
            for number, value in self.broadcast(jax.tree.map(np.asarray, mine)).items():
                leaves[number] = placed(value, leaves[number].sharding)
        return with_keys(jax.tree.unflatten(tree, leaves), kinds)

    def whole(self, values: PyTree, keep: Callable[[Any], Any] = lambda leaf: leaf) -> PyTree:
        """Returns all of each array, as NumPy's; one exchange after another for those in parts, because all at once
        may not fit.

        Args:
          values: on the mesh.
          keep: what to keep of each.
        """
        return jax.tree.map(lambda leaf: keep(self._whole(leaf)), values)

    def _whole(self, leaf: jax.Array) -> Any:
        if leaf.is_fully_addressable:
            return np.array(leaf)
        if not leaf.is_fully_replicated:
            self._group.check()
            with self._group.watched():
                leaf = self._replicate(leaf)
                leaf.block_until_ready()
        return np.array(leaf.addressable_data(0))

    def start_training(self, left: int | None) -> None:
        """Makes the device begin to count if there are several processes: see `TrainState.ended` and `left`."""
        if self._several:
            self.now = self.now._replace(ended=placed(np.float32(0), self._everywhere))
        if self.where.left is not None:
            most = np.iinfo(np.int32).max
            count = most if left is None else min(most, max(0, left))
            self.now = self.now._replace(left=placed(np.int32(count), self._everywhere))

    def contents(self) -> Contents:
        """Returns what a checkpoint contains."""
        held = [
            Held(path, variable.shape, (Slice(variable, 0, rows_of(variable), 0),))
            for path, variable in zip(self.variables.paths, self.variables.trained, strict=True)
        ]
        state = contents_of_state(jax.eval_shape(without_keys, self.now.optimizer), held)
        assert state is not None  # every leaf that belongs to a variable belongs to one alone
        return (*contents_of_variables(self.variables), *state)

    def copies(self) -> PyTree:
        """Copies the values in a checkpoint, in the order of its contents: the next step overwrites them."""
        return _copied(own(self._saved) if self._several else self._saved)

    def gathered(self) -> PyTree:
        """Returns the same from parts, on the chief; the others only give theirs."""
        if self._group.is_chief:
            return self.whole(self._saved)
        self.whole(self._saved, lambda _: ())
        return None

    @property
    def _saved(self) -> PyTree:
        return without_keys((self.now.params, self.now.state, self.now.optimizer))

    def restore(self, checkpoint: Checkpoint, *, optimizer: bool) -> None:
        """Restores a checkpoint's values; with `optimizer`, its state too.

        Raises:
          CheckpointError: it is of another model or optimizer.
          DamagedCheckpoint: it cannot be read.
        """
        contents, kept = self.contents(), (self.now.params, self.now.state, self.now.optimizer)
        if not optimizer:
            contents, kept = contents[: len(self.variables.entries)], (self.now.params, self.now.state, ())
        leaves, tree = jax.tree.flatten(without_keys(kept))
        checkpoint.require([piece for pieces in contents for piece in pieces], params_only=not optimizer)
        found = [buffer_of(checkpoint, pieces) for pieces in contents]
        laid = [placed(value.reshape(leaf.shape), leaf.sharding) for value, leaf in zip(found, leaves, strict=True)]
        params, state, optimizer_state = with_keys(jax.tree.unflatten(tree, laid), key_kinds(kept))
        self.now = self.now._replace(params=params, state=state)
        if optimizer:
            self.now = self.now._replace(optimizer=optimizer_state)

    def restore_carry(self, state: WorkerState) -> None:
        """Restores the steps' carry from a worker's state, if it has one."""
        if state.carry:
            self.now = self.now._replace(carry=state.unpack(self.now.carry, partial(placed, sharding=self.where.carry)))


_copied = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


def placed_at(sharding: Sharding, tree: PyTree) -> PyTree:
    """Places all leaves of a tree with one sharding."""
    return jax.tree.map(partial(placed, sharding=sharding), tree)


def own(tree: PyTree) -> PyTree:
    """Returns this process's copy of values that all have."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)
