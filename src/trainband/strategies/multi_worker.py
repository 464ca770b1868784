"""The strategies whose workers are processes of one JAX program: each step is one computation on all their devices."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from trainband.cluster import Address, Cluster
from trainband.cluster.resolvers.credentials import resolve_credentials
from trainband.cluster.resolvers.nccl import restrict_nccl_to_loopback
from trainband.cluster.resolvers.user_secret import credentials_at
from trainband.errors import ClusterError
from trainband.job.checkpoints import RestoreFrom
from trainband.model.mesh_context import DATA
from trainband.model.model import Model
from trainband.runtime.system import freeze_loaded_objects
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.spmd.engine import SpmdEngine
from trainband.spmd.process_group import ProcessGroup
from trainband.spmd.sharding import mesh_of
from trainband.strategies.devices import reserve_gpu
from trainband.strategies.mesh_strategy import MeshStrategy
from trainband.strategies.mirrored import check_remainder

TIMEOUT_S = 30.0
START_S = 300.0


class MultiWorkerMirrored(MeshStrategy):
    """All devices of all workers as one: each has all the variables and a part of every step's examples.

    Gradients are averaged by JAX's own collectives (NCCL on GPUs, gloo on CPUs, ICI on TPUs). The result is that of one
    device on the batches of all workers together, except for rounding. Each worker passes its own batches, all of one
    size; the training ends when the first has used up its own. If a worker dies or is stuck, all others end within
    `timeout_s` with an error that names it; restarted (`trainband run --restarts`), the job resumes from its newest
    checkpoint.

    Must be constructed before any other use of JAX: it takes effect before JAX starts its backends.

    Args:
      cluster: the cluster and which task of it this process is, as returned by `trainband.cluster.resolve()`; it has
        no ps. `None`: this process runs alone, as `Mirrored`.
      remainder: how to handle a worker's batch whose examples do not divide evenly among its devices, see `Mirrored`.
      timeout_s: seconds of silence after which a worker counts as dead, or without progress after which it counts as
        stuck. While it evaluates or writes, the others wait and report it.
      start_s: seconds for all workers to start, and for the first step, which is compiled.
      say: receives lines for people.

    Raises:
      ClusterError: the cluster has a ps; or this process has already started JAX or such a strategy.
      AddressInUse: another process uses the chief's port, where the workers meet.
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
        if cluster.elastic:
            raise ClusterError(
                f"{name}: workers that compute in lockstep are fixed when the job starts; {cluster.task} cannot join "
                "them. Use ParameterServer for elastic workers."
            )
        if cluster.spec.ps:
            raise ClusterError(
                f"{name} needs no ps, but the cluster has {', '.join(map(str, cluster.spec.ps))}; leave them out, as "
                "with trainband run --ps 0; or use ParameterServer."
            )
        if cluster.task.trains:
            freeze_loaded_objects()
            if cluster.shares_its_host and (taken := reserve_gpu(cluster.device_index)):
                say(f"{cluster.task} {taken}")
            restrict_nccl_to_loopback(cluster)
            chief = Address.parse(cluster.spec.address(self._tasks[0]), str(self._tasks[0]))
            # If the chief's host is a name, it listens on all interfaces, whatever the name resolves to.
            credentials = credentials_at(str(chief)) if chief.is_loopback else resolve_credentials()
            self._group = ProcessGroup(cluster, timeout_s=timeout_s, start_s=start_s, say=say, credentials=credentials)

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
                f"{self._cluster.task} takes no part in the training; to evaluate the checkpoints on it, pass "
                "checkpoint_dir= and validation= to Trainer.fit."
            )
        if self._group is None:
            return super().start(model, restore)
        self._group.check()
        try:
            return super().start(model, restore)
        except Exception as exc:
            self._group.close(f"{type(exc).__name__}: {exc}")
            raise
