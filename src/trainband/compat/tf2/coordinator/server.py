"""`tf.distribute.Server`: a task of a cluster that serves the coordinator's closures, or holds variables for them."""

from __future__ import annotations

import atexit
import os
from typing import Any

import jax

from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.joined import report_joined
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, UnknownError
from trainband.compat.tf1.sessions.cluster_spec import ClusterSpec, ServerDef
from trainband.compat.tf2.coordinator.job import Job
from trainband.compat.tf2.coordinator.link import network_of
from trainband.compat.tf2.coordinator.ps_service import PsService
from trainband.compat.tf2.coordinator.worker_service import WorkerService
from trainband.errors import AddressInUse
from trainband.ps.program.check.checker import SHARED
from trainband.runtime import SYSTEM
from trainband.runtime.waiting import say_on_stderr
from trainband.wire.transport import Listener, Timeouts


class Server:
    """A server for one task of a cluster, in this process. It listens at once; several may be in one process.

    Args:
      server_or_cluster_def: a `ClusterSpec`, what makes one, or a `ServerDef`.
      job_name, task_index: which task this is; optional if the cluster has only one.
      protocol: ignored; trainband has its own.
      config: ignored.
      start: whether it listens at once.

    Raises:
      ValueError: it is not clear which task this is.
      InvalidArgumentError: the cluster has no such task.
      UnknownError: the port is taken.
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
    ) -> None:
        given = server_or_cluster_def
        if isinstance(given, ServerDef):
            job_name, given = job_name or given.job_name or None, given.cluster
            task_index = server_or_cluster_def.task_index if task_index is None else task_index
        spec = ClusterSpec(given)
        if job_name is None:
            if len(spec.jobs) != 1:
                raise ValueError("Must specify an explicit `job_name`, since the cluster has several jobs.")
            job_name = spec.jobs[0]
        if task_index is None:
            if spec.num_tasks(job_name) != 1:
                raise ValueError("Must specify an explicit `task_index`, since the job has several tasks.")
            task_index = spec.task_indices(job_name)[0]
        if job_name not in spec.jobs or task_index not in spec.task_indices(job_name):
            raise InvalidArgumentError(
                None, None, f'Job "{job_name}" task {task_index} was not defined in cluster {spec.as_dict()}'
            )
        self.server_def = ServerDef(spec.as_cluster_def(), job_name, task_index, protocol or "grpc", config)
        """The cluster, and which task of it this is."""
        self.address = spec.task_address(job_name, task_index)
        self.target = f"grpc://{self.address}"
        """Where it listens."""
        self.name = f"{job_name}:{task_index}"
        self._job = Job(self.name, has_chief="chief" in spec.jobs)
        self._timeouts = Timeouts()
        self._listener: Listener | None = None
        if job_name in ("worker", "ps"):
            SHARED.prepare()  # before the transport has threads, and JAX its devices: it may fork yet
        # Before JAX starts: waiting for another thread costs each small computation 0.05 ms.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        if start:
            self.start()

    def start(self) -> None:
        """Listens, if it does not yet. Nothing does for a task that is neither a worker nor a ps."""
        job = self.server_def.job_name
        if self._listener is not None or job not in ("worker", "ps"):
            return
        transport = network_of(Identity(self.name, SYSTEM.token()))
        service = (
            PsService(self.name, self._job)
            if job == "ps"
            else WorkerService(self.name, self._job, transport, self._timeouts)
        )
        try:
            self._listener = transport.listen(self.address, service, self._timeouts)
        except AddressInUse as exc:
            raise UnknownError(None, None, f"Could not start gRPC server: {exc}") from exc
        atexit.register(self.stop)

    def join(self) -> None:
        """Serves until the coordinator's script has ended, and then ends the process.

        In TensorFlow this never returns, and neither does it here: code after it does not run. If a closure still runs
        10 s after its coordinator has gone, the process ends with status 1, as nothing else stops the closure.

        Raises:
          DeadlineExceeded: no coordinator has come, or the one that was there has gone and none came back, for as long
            as tasks may take to start.
        """
        report_joined()
        if self.server_def.job_name == "ps":
            jax.config.update("jax_platforms", "cpu")  # it must not take memory on a GPU that workers compute on
        if self._listener is not None:
            say_on_stderr(f"{self.name} is at {self.address}")
            try:
                stuck = self._job.wait(say_on_stderr, self._timeouts.start_s, self._timeouts.lease_s)
                if stuck is not None:
                    say_on_stderr(f"{self.name} ends: {stuck}.")
                    os._exit(1)
            finally:
                self.stop()
            say_on_stderr(f"{self.name} ends: the job has ended")
        raise SystemExit(0)

    def stop(self) -> None:
        """Stops listening. Idempotent."""
        if self._listener is not None:
            atexit.unregister(self.stop)
            self._listener.stop(self._timeouts.grace_s)
            self._listener = None

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Server:
        """A server of this process alone."""
        return Server({"localhost": ["localhost:0"]}, "localhost", 0, config=config, start=start)
