"""`tf.distribute.cluster_resolver`: which tasks a cluster has, and which of them this process is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from trainband.cluster.resolvers import slurm, tf_config
from trainband.compat.tf1.sessions.cluster_spec import ClusterSpec
from trainband.compat.tf2.settings.platforms import accelerators


class ClusterResolver:
    """Something that knows a cluster.

    Attributes:
      task_type: this process's job.
      task_id: its number in the job.
      rpc_layer: `grpc`, which is what TensorFlow calls it.
    """

    task_type: str | None = None
    task_id: int | None = None
    rpc_layer: str | None = "grpc"
    environment = ""

    def cluster_spec(self) -> ClusterSpec:
        """The tasks and their addresses."""
        raise NotImplementedError

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of a task, of this one by default; empty where there is no cluster."""
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        spec = self.cluster_spec()
        if job is None or index is None or job not in spec.jobs:
            return ""
        layer = self.rpc_layer if rpc_layer is None else rpc_layer
        address = spec.task_address(job, int(index))
        return f"{layer}://{address}" if layer else address

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """How many accelerators this process has, by their kind."""
        del task_type, task_id, config_proto
        return dict(Counter(platform.upper() for platform in accelerators()))


class SimpleClusterResolver(ClusterResolver):
    """A cluster that the script knows.

    Raises:
      TypeError: it is no `ClusterSpec`.
    """

    def __init__(
        self,
        cluster_spec: Any,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Any = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, ClusterSpec):
            raise TypeError("cluster_spec must be a `tf.train.ClusterSpec`.")
        self._spec = cluster_spec
        self._master = master
        self.task_type, self.task_id = task_type, task_id
        self.environment = environment
        self.rpc_layer = rpc_layer
        self._accelerators = dict(num_accelerators or {})

    def cluster_spec(self) -> ClusterSpec:
        return self._spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        return self._master if task_type is None else super().master(task_type, task_id, rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        return self._accelerators or super().num_accelerators(task_type, task_id, config_proto)


class TFConfigClusterResolver(ClusterResolver):
    """The cluster that `TF_CONFIG` describes; an empty one where it is not set."""

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        said = tf_config.content() or {}
        task = said.get("task") or {}
        self._jobs = said.get("cluster") or {}
        self.task_type = task.get("type") if task_type is None else task_type
        index = task.get("index") if task_id is None else task_id
        self.task_id = None if index is None else int(index)
        self.rpc_layer = rpc_layer or said.get("rpc_layer") or "grpc"
        self.environment = environment or said.get("environment") or ""

    def cluster_spec(self) -> ClusterSpec:
        return ClusterSpec(self._jobs)


class SlurmClusterResolver(ClusterResolver):
    """The cluster of a job of Slurm's.

    Args:
      jobs: how many tasks of each job there are, `{"ps": 1, "worker": 2}`; all are workers by default.
      port_base: the port of a node's first task; the next one has the next port.
      tasks_per_node: how many tasks each node has; Slurm says so by default.

    Raises:
      ClusterError: this is no job of Slurm's, or the numbers do not fit.
    """

    def __init__(
        self,
        jobs: Any = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: Any = None,
        auto_set_gpu: bool = True,
        rpc_layer: str = "grpc",
    ) -> None:
        del gpus_per_node, gpus_per_task, auto_set_gpu
        self._spec, self.task_type, self.task_id = slurm.tasks(jobs, port_base, tasks_per_node)
        self.rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        return ClusterSpec(self._spec)

    def get_task_info(self) -> tuple[str, int]:
        """Job and number of this process."""
        assert self.task_type is not None
        assert self.task_id is not None
        return self.task_type, self.task_id


class UnionResolver(ClusterResolver):
    """Several resolvers as one: the tasks of all; what this process is, the first one says."""

    def __init__(self, *resolvers: ClusterResolver, rpc_layer: str | None = None) -> None:
        if not resolvers:
            raise ValueError("At least one `ClusterResolver` must be given.")
        self._resolvers: Sequence[ClusterResolver] = resolvers
        self.task_type, self.task_id = resolvers[0].task_type, resolvers[0].task_id
        self.rpc_layer = rpc_layer or resolvers[0].rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        found: dict[str, dict[int, str]] = {}
        for resolver in self._resolvers:
            spec = resolver.cluster_spec()
            for job in spec.jobs:
                for index in spec.task_indices(job):
                    address = spec.task_address(job, index)
                    before = found.setdefault(job, {}).setdefault(index, address)
                    if before != address:
                        raise KeyError(f"Two resolvers give {job}:{index} different addresses: {before}, {address}.")
        return ClusterSpec(found)
