"""`tf.train.ClusterSpec` and `tf.train.Server`, through which a task joins its job."""

from __future__ import annotations

from typing import Any

import jax

from trainband import cluster as tb
from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.device_spec import DeviceSpec
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, UnimplementedError
from trainband.compat.tf1.graphs.graph import Graph
from trainband.compat.tf1.sessions import targets
from trainband.compat.tf1.sessions.job_store import JobStore
from trainband.compat.tf1.sessions.store import LocalStore, Store
from trainband.ps.server.server import Server as PsServer
from trainband.runtime.waiting import say_on_stderr
from trainband.strategies.devices import take_gpu

_SAME = {"master": "chief"}
"""TensorFlow's older names of jobs."""


class ClusterSpec:
    """A cluster as `{job: addresses}`, or `{job: {index: address}}`.

    Raises:
      TypeError: it is no such mapping.
    """

    def __init__(self, cluster: Any) -> None:
        if isinstance(cluster, ClusterSpec):
            cluster = cluster.as_dict()
        if not isinstance(cluster, dict):
            raise TypeError(
                "`cluster` must be a dictionary mapping one or more job names to lists of network addresses, or a "
                f"ClusterSpec, got {cluster!r}."
            )
        self._jobs: dict[str, dict[int, str]] = {}
        for job, tasks in cluster.items():
            if isinstance(tasks, str) or not isinstance(tasks, list | tuple | dict):
                raise TypeError(f"The tasks for job {job!r} must be a list or a dictionary from integers to strings.")
            pairs = tasks.items() if isinstance(tasks, dict) else enumerate(tasks)
            self._jobs[str(job)] = {int(index): str(address) for index, address in pairs}

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def as_dict(self) -> dict[str, Any]:
        """As lists, or by index where some are missing."""
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def num_tasks(self, job_name: str) -> int:
        """How many tasks a job has."""
        return len(self._of(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The numbers of a job's tasks."""
        return sorted(self._of(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of a task."""
        tasks = self._of(job_name)
        if task_index not in tasks:
            raise ValueError(f"No task with index {task_index!r} in job {job_name!r}")
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str]:
        """The addresses of a job's tasks."""
        return list(self._of(job_name).values())

    def _of(self, job: str) -> dict[int, str]:
        if job not in self._jobs:
            raise ValueError(f"No such job in cluster: {job!r}")
        return self._jobs[job]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    def __hash__(self) -> int:
        return hash(str(self._jobs))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


class Server:
    """A task of a cluster.

    On a ps, `join` serves trainband's generic parameter server until the job ends, and then ends the process: code
    after it never runs, as in TensorFlow, where `join` never returns. On a worker, nothing
    listens, and `target` is for sessions.

    Args:
      server_or_cluster_def: a `ClusterSpec`, or what makes one.
      job_name, task_index: which task this is; optional if the cluster has only one.
      protocol: ignored; trainband has its own.
      start: ignored; a server always starts.

    Raises:
      ValueError: it is not clear which task this is.
      InvalidArgumentError: the cluster has no such task.
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,  # noqa: ARG002
        config: ConfigProto | None = None,
        start: bool = True,  # noqa: ARG002
    ) -> None:
        spec = ClusterSpec(server_or_cluster_def)
        jobs = spec.jobs
        if job_name is None:
            if len(jobs) != 1:
                raise ValueError("Must specify an explicit `job_name`, since the cluster has several jobs.")
            job_name = jobs[0]
        if task_index is None:
            if spec.num_tasks(job_name) != 1:
                raise ValueError("Must specify an explicit `task_index`, since the job has several tasks.")
            task_index = spec.task_indices(job_name)[0]
        if job_name not in jobs or task_index not in spec.task_indices(job_name):
            raise InvalidArgumentError(
                None, None, f'Job "{job_name}" task {task_index} was not defined in cluster {spec.as_dict()}'
            )
        self.server_def = spec
        """The cluster."""
        self._config = config
        self._server: PsServer | None = None
        self.target = f"grpc://{spec.task_address(job_name, task_index)}"
        """What sessions of this task are given."""
        if list(jobs) == ["local"] or (not spec.as_dict().get("ps") and sum(map(spec.num_tasks, jobs)) == 1):
            targets.register(self.target, lambda _, settings: LocalStore(settings))
            return
        cluster = _as_trainband(spec, job_name, task_index)
        self._cluster = cluster
        self._here = DeviceSpec(job=job_name, task=task_index)
        # Before JAX starts: waiting for another thread costs each small computation 0.05 ms.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        if cluster.is_ps:
            jax.config.update("jax_platforms", "cpu")
            jax.config.update("jax_enable_x64", True)
            self._server = PsServer(cluster)
        else:
            if taken := take_gpu(cluster.device_index):
                say_on_stderr(f"{cluster.task} {taken}")
            targets.register(self.target, self._store)

    def _store(self, graph: Graph, config: ConfigProto) -> Store:
        if not self._cluster.spec.ps:
            raise UnimplementedError(
                None,
                None,
                f"a session of {self._cluster.task} in a cluster without ps: variables live on parameter servers here, "
                "and each task runs its own graph; add a job ps to the cluster",
            )
        graph.here = self._here
        return JobStore(self._cluster, graph, config)

    def start(self) -> None:
        """It is started already."""

    def join(self) -> None:
        """Serves until the job has ended, and then ends the process."""
        if self._server is None:
            raise SystemExit(0)
        self._server.join()
        raise SystemExit(0)

    @staticmethod
    def create_local_server(config: ConfigProto | None = None, start: bool = True) -> Server:
        """A server of this process alone."""
        return Server({"local": ["localhost:0"]}, "local", 0, config=config, start=start)


def _as_trainband(spec: ClusterSpec, job: str, index: int) -> tb.Cluster:
    jobs: dict[str, Any] = {_SAME.get(name, name): tasks for name, tasks in spec.as_dict().items()}
    return tb.Cluster(spec=tb.ClusterSpec(jobs), task=tb.Task(_SAME.get(job, job), index))
