"""MeshStrategy: the common part of the strategies whose devices form a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path

import jax
from jax.sharding import Mesh

from trainband.cluster import Cluster, Task
from trainband.errors import TrainbandError
from trainband.job.checkpoints import RestoreFrom
from trainband.model.mesh_context import DATA
from trainband.model.model import Model
from trainband.model.optimizer import Optimizer
from trainband.model.variables import PyTree, Variables
from trainband.runtime.waiting import Say
from trainband.spmd.batch_sharding import BatchSharding
from trainband.spmd.engine import SpmdEngine
from trainband.spmd.process_group import ProcessGroup
from trainband.spmd.sharding import Rules, names_of, state_specs, whole
from trainband.strategies.description import Description, described
from trainband.strategies.scope import Scoped


class MeshStrategy(Scoped):
    """A strategy whose engine is `SpmdEngine`. A subclass defines the devices in `_make_mesh`."""

    rules: Rules = staticmethod(whole)
    """How variables are split over the mesh."""

    remainder = "pad"
    """How a batch is handled whose examples do not divide evenly among the devices."""

    central_storage = False
    """Whether the params are on the CPU."""

    _group: ProcessGroup | None = None
    _tasks: Sequence[Task] = ()
    """The tasks whose devices are in the mesh, by process, if there are several."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._mesh: Mesh | None = None

    def mesh(self) -> Mesh:
        """Returns the devices, by their axes. The first call starts JAX's backends, on all workers at the same time."""
        if self._mesh is None:
            self._mesh = self._make_mesh()
        return self._mesh

    def _make_mesh(self) -> Mesh:
        raise NotImplementedError

    @property
    def serves(self) -> bool:
        return False

    @property
    def cluster(self) -> Cluster | None:
        return None

    @property
    def group(self) -> ProcessGroup | None:
        """Returns the processes that compute in lockstep; `None` if there is only one."""
        return self._group

    @property
    def is_chief(self) -> bool:
        return self.cluster is None or self.cluster.is_chief

    @property
    def num_replicas(self) -> int:
        return int(self.mesh().shape.get(DATA, 1))

    @property
    def has_tables(self) -> bool:
        return False

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        return (DATA,)

    @property
    def gradients_per_update(self) -> int:
        return 1 if self.cluster is None else len(self.cluster.spec.workers)

    def global_batch(self, batch: PyTree) -> PyTree:
        if isinstance(batch, Integral):
            return int(batch) * self.num_replicas
        mesh = self.mesh()
        return BatchSharding(mesh, (DATA,) if DATA in mesh.shape else (), "refuse", "global_batch")(batch).batch

    def describe(self, params: PyTree, optimizer: Optimizer | None = None) -> Description:
        """Like `Strategy.describe`. With several workers, call it on all or none; the chief prints."""
        return self._described(type(self).__name__, params, optimizer, self.mesh())

    def _described(self, name: str, params: PyTree, optimizer: Optimizer | None, mesh: Mesh) -> Description:
        variables = Variables.of(params)
        specs = self.rules(variables.trained, mesh)
        state = []
        if optimizer is not None:
            kinds = jax.eval_shape(optimizer.init, params)
            state = list(zip(jax.tree.leaves(kinds), state_specs(kinds, variables, specs), strict=True))
        axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
        title = f"{name}: {mesh.size} device{'s' if mesh.size > 1 else ''} ({axes})"
        names = names_of(list(mesh.devices.flat), self._tasks)
        description = described(title, variables, specs, mesh, state, names)
        if self.is_chief:
            print(description)
        return description

    def start(self, model: Model, restore: RestoreFrom | None = None) -> SpmdEngine:
        return SpmdEngine(
            model,
            self.mesh(),
            self._group,
            rules=self.rules,
            restore=restore,
            say=self._say,
            remainder=self.remainder,
            central=self.central_storage,
        )

    def serve(self, checkpoint_dirs: Sequence[Path] = ()) -> str:  # noqa: ARG002 - a strategy's signature
        raise TrainbandError(f"{type(self).__name__} has no parameter servers to serve.")
