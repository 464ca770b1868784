"""MeshValues: the values that a job trains on its mesh, as its callers read and change them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import jax
from jax.sharding import Mesh

from trainband.errors import ClusterError
from trainband.job.engine import Values
from trainband.model.contents import check_settings
from trainband.model.mesh_context import DATA
from trainband.model.random_keys import without_keys
from trainband.model.variables import PyTree
from trainband.runtime.overrides import override
from trainband.spmd.agreement import same_batches
from trainband.spmd.batch_sharding import sharded_evenly
from trainband.spmd.control_flags import ControlFlags
from trainband.spmd.pipeline import Pipeline
from trainband.spmd.process_group import Group
from trainband.spmd.sharded_state import ShardedState, own, placed_at
from trainband.spmd.sharding import is_on_cpu
from trainband.spmd.train_state import placed, scalars_of, with_settings


class MeshValues(Values):
    """`Values` on a mesh. If they are in parts over processes, reading them whole is an exchange with all.

    Args:
      state: the values.
      mesh: the devices.
      group: the processes that own them.
      pipeline: changes the values, a call later than it is asked to.
      control: tells the other processes what the chief has steered; `None` without others.
      central: whether the CPU keeps the params.
    """

    def __init__(
        self,
        state: ShardedState,
        mesh: Mesh,
        group: Group,
        pipeline: Pipeline,
        control: ControlFlags | None,
        *,
        central: bool,
    ) -> None:
        self.in_parts = state.in_parts
        self._state = state
        self._mesh = mesh
        self._group = group
        self._pipeline = pipeline
        self._control = control
        self._several = group.count > 1
        # An evaluation's batches are split if the devices hold the params and all processes bring the same batches.
        alone = self._several and not state.in_parts
        self._splits_batches = not alone and not central and (mesh.size > 1 or not is_on_cpu(mesh))

    @override
    def params(self) -> PyTree:
        """Like `Values.params`; if they are in parts, all processes must ask for them together."""
        return self._asked_for("asks for the params", self._state.now.params)

    @override
    def model_state(self) -> PyTree:
        return self._state.whole(self._state.now.state)

    @override
    def optimizer_state(self) -> PyTree:
        """Like `Values.optimizer_state`; if it is in parts, all processes must ask for it together."""
        return self._asked_for("asks for the optimizer's state", without_keys(self._state.now.optimizer))

    def _asked_for(self, what: str, values: PyTree) -> PyTree:
        """Returns all of these values; if that takes an exchange, once all processes ask for them."""
        if self._several and not all(leaf.is_fully_replicated for leaf in jax.tree.leaves(values)):
            self._group.check()
            self._group.barrier(what)
        return self._state.whole(values)

    @override
    def assign(self, params: PyTree, state: PyTree, optimizer: PyTree) -> None:
        self._pipeline.settle()
        sharded, where = self._state, self._state.where
        params, state, optimizer = sharded.broadcast((params, state, optimizer))
        sharded.now = sharded.now._replace(
            params=jax.tree.map(placed, params, where.params),
            state=placed_at(where.state, state),
            optimizer=jax.tree.map(placed, optimizer, where.optimizer),
        )

    @override
    def steer(self, settings: Mapping[str, float]) -> None:
        """Like `Values.steer`. With several processes, each step carries one number."""
        if not self._group.is_chief:
            raise ClusterError(f"{self._group.task} may not steer the optimizer: only the chief may.")
        now = self._state.now
        if self._control is None:
            self._state.now = now._replace(optimizer=with_settings(now.optimizer, settings))
            return
        scalars = scalars_of(now.optimizer)
        check_settings(settings, scalars)
        self._control.steer({1 + list(scalars).index(name): value for name, value in settings.items()})

    @override
    def computed(
        self, function: Callable[[PyTree, PyTree, PyTree], PyTree], batches: Iterable[PyTree], what: str
    ) -> Iterator[tuple[PyTree, PyTree]]:
        """Like `Values.computed`. If each process has all values, it computes alone; else all compute together, on the
        same batches.
        """
        params, state = self._state.now.params, self._state.now.state
        if self.in_parts:
            batches = same_batches(self._group, batches, what)
        elif self._several:
            params, state = own((params, state))
        axes = (DATA,) if DATA in self._mesh.shape else ()
        for batch in batches:
            given = sharded_evenly(self._mesh, axes, batch) if self._splits_batches else batch
            if not self.in_parts:
                yield batch, function(params, state, given)
                continue
            with self._group.watched():
                outputs = function(params, state, given)
                jax.block_until_ready(outputs)
            yield batch, self._state.whole(outputs)
