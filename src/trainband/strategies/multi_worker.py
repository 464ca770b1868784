"""The strategies whose workers are processes of one JAX program: each step is one computation on all their devices."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from trainband.cluster import Cluster
from trainband.cluster.resolvers.credentials import resolve_credentials
from trainband.errors import ClusterError
from trainband.model.mesh_context import DATA
from trainband.model.model import Model
from trainband.ps.worker.checkpointing import RestoreFrom
from trainband.runtime.system import leave_uncollected
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.spmd.engine import SpmdEngine
from trainband.spmd.process_group import ProcessGroup
from trainband.spmd.sharding import mesh_of
from trainband.strategies.devices import take_gpu
from trainband.strategies.mesh_strategy import MeshStrategy
from trainband.strategies.mirrored import check_remainder

TIMEOUT_S = 30.0
START_S = 300.0


class MultiWorkerMirrored(MeshStrategy):
    """All devices of all workers as one: each has all the variables and a part of every step's examples.

    Gradients are averaged by JAX's own collectives (NCCL on GPUs, gloo on CPUs, ICI on TPUs). The result is that of one
    device on the batches of all workers together, but for rounding. Each worker brings batches of its own, all of one
    size; the training ends when the first has used up its own. When a worker dies or is stuck, all others end with an
    error that names it, within `timeout_s`; started again (`trainband run --restarts`), the job resumes from its newest
    checkpoint.

    Must be constructed before JAX is used for anything else: it takes effect before JAX starts its backends.

    Args:
      cluster: the cluster and which task of it this process is, as `trainband.cluster.resolve()` gives it; it has
        no ps. `None`: this process stands alone and is `Mirrored`.
      remainder: what becomes of a worker's batch whose examples its devices do not divide, see `Mirrored`.
      timeout_s: seconds of silence after which a worker counts as dead, and of standing still after which it counts as
        stuck. While it evaluates or writes the others wait, and say so.
      start_s: for all workers to come up, and for the first step, which is compiled.
      say: where lines for people go.

    Raises:
      ClusterError: the cluster has a ps; or this process has started JAX, or such a strategy, before.
      AddressInUse: another process has the chief's port, at which the workers meet.
    """

    _sizes: Mapping[str, int] = {DATA: -1}
    """How many devices along each axis of the mesh."""

    def __init__(
        self,
        cluster: Cluster | None,
        *,
        remainder: str = "pad",
        timeout_s: float = TIMEOUT_S,
        start_s: float = START_S,
        say: Say = say_on_stderr,
    ) -> None:
        name = type(self).__name__
        check_remainder(name, remainder)
        for parameter, value in (("timeout_s", timeout_s), ("start_s", start_s)):
            if not value > 0:
                raise ClusterError(f"{name}: {parameter} must be > 0 seconds, got {value}.")
        super().__init__(say)
        self._cluster = cluster
        self.remainder = remainder
        if cluster is None:
            return
        self._tasks = cluster.spec.workers
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
            leave_uncollected()
            if cluster.shares_its_host and (taken := take_gpu(cluster.device_index)):
                say(f"{cluster.task} {taken}")
            self._group = ProcessGroup(
                cluster, timeout_s=timeout_s, start_s=start_s, say=say, credentials=resolve_credentials()
            )

    def _make_mesh(self) -> Mesh:
        if self._group is not None:
            self._group.check_devices()
        return mesh_of(self._sizes, jax.devices(), self._tasks)

    @property
    def cluster(self) -> Cluster | None:
        return self._cluster

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        return tuple(self._sizes)

    def start(self, model: Model, restore: RestoreFrom | None = None) -> SpmdEngine:
        if self._cluster is not None and not self._cluster.task.trains:
            raise ClusterError(
                f"{self._cluster.task} takes no part in the training; Trainer.fit with checkpoint_dir= and validation= "
                "has it evaluate the checkpoints."
            )
        if self._group is None:
            return super().start(model, restore)
        self._group.check()
        try:
            return super().start(model, restore)
        except Exception as exc:
            self._group.close(f"{type(exc).__name__}: {exc}")
            raise
