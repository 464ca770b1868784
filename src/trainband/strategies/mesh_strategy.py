"""MeshStrategy: what the strategies have in common whose devices are a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import jax
from jax.sharding import Mesh

from trainband.cluster import Cluster, Task
from trainband.errors import TrainbandError
from trainband.model.mesh_context import DATA
from trainband.model.optimizer import Optimizer
from trainband.model.variables import PyTree, Variables
from trainband.spmd.batch_sharding import BatchSharding
from trainband.spmd.sharding import Rules, names_of, state_specs, whole
from trainband.strategies.description import Description, described
from trainband.strategies.scope import Scoped
from trainband.wire.patience import Say


class MeshStrategy(Scoped):
    """See `Strategy`. `mesh` and `start` are the subclass's."""

    rules: Rules = staticmethod(whole)
    """How variables are split over the mesh."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def mesh(self) -> Mesh:
        """The devices, by their axes. The first call starts JAX's backends."""
        raise NotImplementedError

    @property
    def serves(self) -> bool:
        """See `Strategy.serves`."""
        return False

    @property
    def cluster(self) -> Cluster | None:
        """See `Strategy.cluster`."""
        return None

    @property
    def is_chief(self) -> bool:
        """See `Strategy.is_chief`."""
        return True

    @property
    def num_replicas(self) -> int:
        """See `Strategy.num_replicas`."""
        return int(self.mesh().shape.get(DATA, 1))

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """See `Strategy.mesh_axes`."""
        return (DATA,)

    @property
    def gradients_per_update(self) -> int:
        """See `Strategy.gradients_per_update`."""
        return 1 if self.cluster is None else len(self.cluster.spec.workers)

    def global_batch(self, batch: PyTree) -> PyTree:
        """See `Strategy.global_batch`."""
        return global_batch(batch, self.num_replicas, self.mesh())

    def describe(self, params: PyTree, optimizer: Optimizer | None = None) -> Description:
        """See `Strategy.describe`."""
        return describe_on_mesh(type(self).__name__, params, optimizer, self.mesh(), self.rules)

    def serve(self) -> str:
        """See `Strategy.serve`."""
        raise TrainbandError(f"{type(self).__name__} has no parameter servers to serve.")


def global_batch(batch: PyTree, replicas: int, mesh: Mesh) -> PyTree:
    """See `Strategy.global_batch`."""
    if isinstance(batch, Integral):
        return int(batch) * replicas
    axes = (DATA,) if DATA in mesh.shape else ()
    return BatchSharding(mesh, axes, "refuse", "global_batch")(batch).batch


def describe_on_mesh(
    name: str,
    params: PyTree,
    optimizer: Optimizer | None,
    mesh: Mesh,
    rules: Rules,
    *,
    tasks: Sequence[Task] = (),
    show: bool = True,
) -> Description:
    """See `Strategy.describe`. `tasks`: whose devices they are, where they are those of several."""
    variables = Variables.of(params)
    specs = rules(variables.trained, mesh)
    state = []
    if optimizer is not None:
        kinds = jax.eval_shape(optimizer.init, params)
        state = list(zip(jax.tree.leaves(kinds), state_specs(kinds, variables, specs), strict=True))
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    title = f"{name}: {mesh.size} device{'s' if mesh.size > 1 else ''} ({axes})"
    description = described(title, variables, specs, mesh, state, names_of(list(mesh.devices.flat), tasks))
    if show:
        print(description)
    return description
