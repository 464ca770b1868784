"""MultiWorkerMirroredStrategy: the workers of a cluster compute in step."""

from __future__ import annotations

import atexit
import enum
import sys
from typing import Any

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.cluster.resolvers.joined import report_joined
from trainband.compat.tf2.distribute.one_process import MirroredStrategy
from trainband.compat.tf2.distribute.resolvers import ClusterResolver, TFConfigClusterResolver
from trainband.compat.tf2.distribute.strategy import Strategy
from trainband.errors import ClusterError
from trainband.spmd.process_group import ProcessGroup
from trainband.strategies import Mirrored, MultiWorkerMirrored


class CommunicationImplementation(enum.Enum):
    """How values are exchanged, which is left to JAX: NCCL between GPUs, gloo between CPUs."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


class CommunicationOptions:
    """How values are exchanged: taken, and left to JAX."""

    def __init__(
        self, bytes_per_pack: int = 0, timeout_seconds: float | None = None, implementation: Any = None
    ) -> None:
        self.bytes_per_pack = bytes_per_pack
        self.timeout_seconds = timeout_seconds
        self.implementation = implementation or CommunicationImplementation.AUTO


class MultiWorkerMirroredStrategy(MirroredStrategy):
    """All devices of all workers compute in step. To be made before anything is computed.

    Args:
      cluster_resolver: tells of the cluster; `TF_CONFIG` by default. Without a cluster it is `MirroredStrategy`.
      communication_options: taken, and left to JAX.

    Raises:
      ClusterError: JAX has computed something before, or the cluster cannot be read.
    """

    def __init__(
        self, cluster_resolver: Any = None, communication_options: Any = None, communication: Any = None
    ) -> None:
        del communication_options, communication
        self._resolver = cluster_resolver if cluster_resolver is not None else TFConfigClusterResolver()
        cluster = cluster_of(self._resolver)
        if cluster is None or not cluster.task.trains or len(cluster.spec.workers) == 1:
            if cluster is not None:
                report_joined()
            self._begin(Mirrored(standalone=True))
            return
        trainband = MultiWorkerMirrored(cluster)
        group = trainband.group
        assert group is not None
        Strategy.__init__(self, trainband, list(trainband.mesh().devices.flat), group)
        atexit.register(_leave, group)

    @property
    def cluster_resolver(self) -> Any:
        return self._resolver


def _leave(group: ProcessGroup) -> None:
    failure = getattr(sys, "last_value", None)
    group.close("" if failure is None else f"{type(failure).__name__}: {failure}")


def cluster_of(resolver: ClusterResolver) -> Cluster | None:
    """The workers of a cluster and which of them this is, as a resolver says; `None` where there are none.

    Raises:
      ClusterError: this process is a ps.
    """
    jobs: dict[str, Any] = resolver.cluster_spec().as_dict()
    if not jobs or not resolver.task_type:
        return None
    if resolver.task_type == "ps":
        raise ClusterError(
            f"This process is ps:{resolver.task_id}, and workers that compute in lockstep have no use for one: leave "
            "the ps out of the cluster, as with trainband run --ps 0."
        )
    kept = {job: tasks for job, tasks in jobs.items() if job in ("chief", "worker", "evaluator")}
    return Cluster(spec=ClusterSpec(kept), task=Task(resolver.task_type, int(resolver.task_id or 0)))
