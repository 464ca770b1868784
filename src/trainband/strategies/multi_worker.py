"""The strategies whose workers are processes of one JAX program: each step is one computation on all their devices."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from trainband.cluster import Cluster, Task
from trainband.errors import ClusterError
from trainband.model.mesh_context import DATA
from trainband.model.model import Model
from trainband.model.optimizer import Optimizer
from trainband.model.variables import PyTree
from trainband.ps.checkpointing import RestoreFrom
from trainband.spmd.engine import SpmdEngine
from trainband.spmd.process_group import ProcessGroup
from trainband.spmd.sharding import mesh_of
from trainband.strategies.description import Description
from trainband.strategies.devices import take_card
from trainband.strategies.engine import Engine
from trainband.strategies.mesh_strategy import MeshStrategy, describe_on_mesh
from trainband.strategies.mirrored import Mirrored, check_remainder
from trainband.wire.patience import Say, say_on_stderr

TIMEOUT_S = 30.0
START_S = 300.0


class MultiWorkerMirrored(MeshStrategy):
    """All devices of all workers as one: each has all the variables and a part of every step's examples.

    Gradients are averaged by JAX's own collectives (NCCL on GPUs, gloo on CPUs, ICI on TPUs). The result is that of one
    device on the batches of all workers together, but for rounding. Each worker brings batches of its own, all of one
    size; the training ends when the first has used up its own. When a worker dies or is stuck, all others end with an
    error that names it, within `timeout_s`; started again (`trainband run --restarts`), the job goes on from its newest
    checkpoint.

    Must be constructed before JAX is used for anything else: it takes effect before JAX starts its backends.

    Args:
      cluster: the cluster and which task of it this process is, as `trainband.cluster.resolve()` gives it; it has
        no ps. `None`: this process stands alone and is `Mirrored`.
      remainder: what becomes of a worker's batch whose examples its devices do not divide: `refuse` it, or `pad` it
        with examples of weight zero. (For that, the loss must be the mean over its examples, and the model have no
        state.)
      timeout_s: seconds of silence after which a worker counts as dead, and of standing still after which it counts as
        stuck. While it evaluates or writes the others wait, and say so.
      start_s: for all workers to come up, and for the first step, which is compiled.
      say: where lines for people go.

    Raises:
      ClusterError: the cluster has a ps; or this process has started JAX, or such a strategy, before.
      AddressInUse: another process has the chief's port, at which the workers meet.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        *,
        remainder: str = "refuse",
        timeout_s: float = TIMEOUT_S,
        start_s: float = START_S,
        say: Say = say_on_stderr,
    ) -> None:
        name = type(self).__name__
        check_remainder(name, remainder)
        for parameter, value in (("timeout_s", timeout_s), ("start_s", start_s)):
            if not value > 0:
                raise ClusterError(f"{name}: {parameter} must be > 0 seconds, got {value}.")
        self._cluster = cluster
        self._remainder = remainder
        super().__init__(say)
        self._mesh: Mesh | None = None
        self._group: ProcessGroup | None = None
        if cluster is None:
            return
        if cluster.guest:
            raise ClusterError(
                f"{name}: workers that compute in step are planned, all of them: {cluster.task} cannot join them. "
                "ParameterServer takes guests."
            )
        if cluster.spec.ps:
            raise ClusterError(
                f"{name} needs no ps, but the cluster has {', '.join(map(str, cluster.spec.ps))}: leave them out, as "
                "with trainband run --ps 0; or use ParameterServer."
            )
        if cluster.task.trains:
            if cluster.shares_its_host and (taken := take_card(cluster.device_index)):
                say(f"{cluster.task} {taken}")
            self._group = ProcessGroup(cluster, timeout_s=timeout_s, start_s=start_s, say=say)

    def mesh(self) -> Mesh:
        """The devices of all workers, by the mesh's axes. The first call starts JAX's backends, on all workers."""
        if self._mesh is None:
            if self._group is not None:
                self._group.check_devices()
            self._mesh = mesh_of(self._axes(), jax.devices(), self._tasks)
        return self._mesh

    @property
    def _tasks(self) -> Sequence[Task]:
        """Whose devices are in the mesh, by process."""
        return () if self._cluster is None else self._cluster.spec.workers

    def _axes(self) -> dict[str, int]:
        return {DATA: -1}

    @property
    def cluster(self) -> Cluster | None:
        """See `Strategy.cluster`."""
        return self._cluster

    @property
    def is_chief(self) -> bool:
        """See `Strategy.is_chief`."""
        return self._cluster is None or self._cluster.is_chief

    def describe(self, params: PyTree, optimizer: Optimizer | None = None) -> Description:
        """See `Strategy.describe`. To be called on all workers, or on none; the chief prints."""
        mesh, name = self.mesh(), type(self).__name__
        return describe_on_mesh(name, params, optimizer, mesh, self.rules, tasks=self._tasks, show=self.is_chief)

    def start(self, model: Model, restore: RestoreFrom | None = None) -> Engine:
        """See `Strategy.start`."""
        if self._cluster is not None and not self._cluster.task.trains:
            raise ClusterError(
                f"{self._cluster.task} takes no part in the training; Trainer.fit with checkpoint_dir= and validation= "
                "has it evaluate the checkpoints."
            )
        if self._group is None:
            return self._alone(model, restore)
        group = self._group
        group.check()
        try:
            return SpmdEngine(
                model,
                self.mesh(),
                group,
                rules=self.rules,
                restore=restore,
                say=self._say,
                remainder=self._remainder,
            )
        except Exception as exc:
            group.close(f"{type(exc).__name__}: {exc}")
            raise

    def _alone(self, model: Model, restore: RestoreFrom | None) -> Engine:
        return Mirrored(remainder=self._remainder, say=self._say).start(model, restore)
