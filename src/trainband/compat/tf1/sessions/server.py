"""`tf.train.Server`, through which a task joins its job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from trainband import cluster as tb
from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.device_spec import DeviceSpec
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, UnimplementedError
from trainband.compat.tf1.graphs.graph import Graph
from trainband.compat.tf1.sessions import targets
from trainband.compat.tf1.sessions.cluster_spec import ClusterSpec, ServerDef
from trainband.compat.tf1.sessions.job_store import JobStore
from trainband.compat.tf1.sessions.store import LocalStore, LocalVariables, Store
from trainband.ps.server import Server as PsServer
from trainband.runtime.waiting import say_on_stderr
from trainband.strategies.devices import reserve_gpu

_PARTS = {"ps": ("ps", "param", "server", "store"), "chief": ("chief", "master"), "evaluator": ("eval",)}
"""By trainband's name of a job, what a script's name for it contains; any other name is that of the workers."""


class Server:
    """A task of a cluster.

    On a ps, `join` serves trainband's generic parameter server until the job ends, and then ends the process: code
    after it never runs, as in TensorFlow, where `join` never returns. On a worker, nothing
    listens, and `target` is for sessions.

    Args:
      server_or_cluster_def: a `ClusterSpec`, what makes one, or a `ServerDef`. The parameter servers are the job "ps";
        without one of this name, that whose name sounds like it.
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
        protocol: str | None = None,
        config: ConfigProto | None = None,
        start: bool = True,  # noqa: ARG002
    ) -> None:
        given = server_or_cluster_def
        if isinstance(given, ServerDef):
            job_name, protocol = job_name or given.job_name or None, protocol or given.protocol
            task_index = given.task_index if task_index is None else task_index
            config, given = config or given.default_session_config, given.cluster
        spec = ClusterSpec(given)
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
        self.server_def = ServerDef(spec.as_cluster_def(), job_name, task_index, protocol or "grpc", config)
        """The cluster, and which task of it this is."""
        self._config = config
        self._server: PsServer | None = None
        self.target = f"grpc://{spec.task_address(job_name, task_index)}"
        """The target for sessions of this task."""
        names = roles(jobs)
        has_ps = any(role == "ps" and spec.num_tasks(name) for name, role in names.items())
        if list(jobs) in (["local"], ["localhost"]) or (not has_ps and sum(map(spec.num_tasks, jobs)) == 1):
            variables = LocalVariables()
            targets.register(self.target, lambda _, settings: LocalStore(settings, variables))
            return
        cluster = _as_trainband(spec, names, job_name, task_index)
        self._names = names
        self._cluster = cluster
        self._here = DeviceSpec(job=job_name, task=task_index)
        # Before JAX starts: waiting for another thread costs each small computation 0.05 ms.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        if cluster.is_ps:
            jax.config.update("jax_platforms", "cpu")
            jax.config.update("jax_enable_x64", True)
            self._server = PsServer(cluster)
            targets.register(self.target, self._serve)
        else:
            targets.register_worker(self.target, self._store)
            if taken := reserve_gpu(cluster.device_index):
                say_on_stderr(f"{cluster.task} {taken}")

    def _serve(self, graph: Graph, config: ConfigProto) -> Store:  # noqa: ARG002
        """Serve until the job ends, which is what a script waits for in a session on a ps."""
        say_on_stderr(f"{self._cluster.task}: a session on a ps serves until the job ends, as join() does")
        self.join()
        raise AssertionError

    def _store(self, graph: Graph, config: ConfigProto) -> Store:
        if not self._cluster.spec.ps:
            raise UnimplementedError(
                None,
                None,
                f"a session of {self._cluster.task} in a cluster without ps: variables live on parameter servers here, "
                "and each task runs its own graph; add a job ps to the cluster",
            )
        graph.here = self._here
        return JobStore(self._cluster, graph, config, self._names)

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
        return Server({"localhost": ["localhost:0"]}, "localhost", 0, config=config, start=start)


def roles(jobs: Sequence[str]) -> dict[str, str]:
    """What trainband calls the jobs of a script, by their names in it.

    Raises:
      ValueError: two of them mean the same.
    """
    found: dict[str, str] = {}
    for job in jobs:
        alike = (
            role for role, parts in _PARTS.items() if role not in jobs and any(one in job.lower() for one in parts)
        )
        role = job if job in (*_PARTS, "worker") else next(alike, "worker")
        if role in found.values():
            other = next(one for one, same in found.items() if same == role)
            raise ValueError(
                f"The jobs {other!r} and {job!r} of the cluster are both taken for {role!r}: call the parameter "
                "servers 'ps', and the tasks that train 'worker' and 'chief'."
            )
        found[job] = role
    return found


def _as_trainband(spec: ClusterSpec, names: Mapping[str, str], job: str, index: int) -> tb.Cluster:
    jobs: dict[str, Any] = {names[name]: tasks for name, tasks in spec.as_dict().items()}
    return tb.Cluster(spec=tb.ClusterSpec(jobs), task=tb.Task(names[job], index))
