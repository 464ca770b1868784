"""The backend `ray`: tasks on a Ray cluster, existing or started here for the job."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainband.cluster.address import Address
from trainband.cluster.task import Task
from trainband.errors import ClusterError, YourError
from trainband.launch.backend import Watcher
from trainband.launch.machines.ray import RayMachines
from trainband.launch.request import JobRequest
from trainband.launch.supervised_cluster import SupervisedCluster

_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_CONNECT_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ray:
    """An existing Ray cluster, or one on this machine for this job only.

    Attributes:
      address: `auto`: the cluster of `RAY_ADDRESS`, which Ray sets in its jobs, or the one running on this machine;
        `HOST:PORT`: of a cluster to which this machine belongs; `local`: a new one on this machine, which ends with
        the job.
      ps_cpus: CPUs of each ps and of the evaluator.
      worker_cpus: CPUs of each worker and of the chief; also the size of its XLA thread pool.
      worker_gpus: GPUs of each worker and of the chief.
      ps_resources, worker_resources: further resources, separated by commas: `TPU=4,fast=1`.
      strategy: how Ray places the tasks: `PACK`, `SPREAD`, `STRICT_PACK` (all on one node) or `STRICT_SPREAD` (each on
        its own node).
      place_s: seconds to wait until the cluster has the resources, at the start and after a loss.
      grows: whether the cluster may gain nodes, for example from Ray's autoscaler.
      working_dir: a directory that Ray copies to all nodes, where the tasks run; when empty, they run in this
        process's directory, which all nodes must share. Within a Ray job, the job's.
      runtime_env: of the tasks, as JSON, or the name of a file with it: `{"pip": ["trainband"]}`.
      variables: comma-separated names of environment variables that the tasks get in addition to those of trainband
        and JAX.

    Source: https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html, "Placement strategy";
      https://docs.ray.io/en/latest/ray-core/handling-dependencies.html, "runtime environments".
    """

    address: str = "auto"
    ps_cpus: float = 1.0
    worker_cpus: float = 1.0
    worker_gpus: float = 0.0
    ps_resources: str = ""
    worker_resources: str = ""
    strategy: str = "PACK"
    place_s: float = 600.0
    grows: bool = False
    working_dir: str = ""
    runtime_env: str = ""
    variables: str = ""

    def prepare(self, request: JobRequest, watcher: Watcher) -> SupervisedCluster:
        if find_spec("ray") is None:
            raise YourError("the backend ray needs Ray, which is not installed: pip install 'trainband[ray]'.")
        if self.strategy not in _STRATEGIES:
            raise ClusterError(f"strategy must be one of {', '.join(_STRATEGIES)}, got {self.strategy!r}.")
        for name in ("ps_cpus", "worker_cpus", "worker_gpus"):
            if getattr(self, name) < 0:
                raise ClusterError(f"{name} must be 0 or more, got {getattr(self, name):g}.")
        if not self.place_s > 0:
            raise ClusterError(f"place_s must be > 0 seconds, got {self.place_s:g}.")
        ps = {"CPU": self.ps_cpus, **read_resources(self.ps_resources, "ps_resources")}
        worker = {
            "CPU": self.worker_cpus,
            "GPU": self.worker_gpus,
            **read_resources(self.worker_resources, "worker_resources"),
        }

        def resources(task: Task) -> Mapping[str, float]:
            return worker if task.trains else ps

        needed_cpus = sum(resources(task)["CPU"] for task in request.tasks())
        environment = self._runtime_env()
        machines = RayMachines(
            resources,
            lambda: self._connect(request.environment, environment, needed_cpus),
            strategy=self.strategy,
            place_s=self.place_s,
            grows=self.grows,
            threads=request.threads,
            variables=[name for name in self.variables.split(",") if name],
            say=watcher.report,
        )
        cluster = SupervisedCluster(request, machines, watcher)
        machines.interrupted = cluster.has_interrupt
        return cluster

    def _runtime_env(self) -> dict[str, Any]:
        text, where = self.runtime_env, "runtime_env"
        if text and not text.lstrip().startswith("{"):
            try:
                text, where = Path(text).read_text(encoding="utf-8"), text
            except (OSError, UnicodeDecodeError) as exc:
                raise ClusterError(f"runtime_env: the file {self.runtime_env!r} cannot be read: {exc}.") from None
        try:
            found = json.loads(text or "{}")
        except ValueError as exc:
            raise ClusterError(f"{where} is not JSON: {exc}.") from None
        if not isinstance(found, dict):
            raise ClusterError(f"{where} must be a JSON object, as for ray.init(runtime_env=...).")
        if self.working_dir:
            found["working_dir"] = self.working_dir
        return found

    def _connect(
        self, environ: Mapping[str, str], runtime_env: dict[str, Any], needed_cpus: float
    ) -> Callable[[], None]:
        """Connects this process to Ray; returns a function that disconnects it.

        Raises:
          YourError: the cluster does not exist.
        """
        import ray

        if ray.is_initialized():
            if runtime_env or self.address != "auto":
                raise YourError(
                    "this process is already connected to Ray, too late for address, working_dir and runtime_env; "
                    "leave them out, pass them to ray.init, or call ray.shutdown() first."
                )
            return lambda: None
        settings: dict[str, Any] = {"runtime_env": runtime_env, "log_to_driver": False, "logging_level": "warning"}
        if self.address == "local":
            cpus = max(os.cpu_count() or 1, -int(-needed_cpus // 1))
            settings |= {"num_cpus": cpus, "include_dashboard": False}
        address = environ.get("RAY_ADDRESS") or "auto" if self.address == "auto" else self.address
        if "://" in address:
            raise YourError(
                f"{address}: trainband runs on a node of the Ray cluster, not through Ray Client. Run it there, or "
                "submit it as a job: ray job submit --working-dir . -- trainband run --on ray ..."
            )
        if address not in ("auto", "local"):
            _check_listens(address)
        try:
            ray.init(address=address, **settings)
        except Exception as exc:  # Ray has no error class for this
            where = {
                "auto": "no usable Ray cluster runs on this machine",
                "local": "Ray cannot be started on this machine",
            }.get(address, f"cannot use Ray at {address}")
            raise YourError(
                f"{where}: {str(exc).strip()} Start one (ray start --head), name another (-o address=HOST:PORT), or "
                "let trainband start one for this job (-o address=local)."
            ) from exc
        return ray.shutdown


def _check_listens(address: str) -> None:
    """Refuses an address where no process listens; Ray would try to connect for minutes.

    Raises:
      YourError: no process listens there.
    """
    where = Address.parse(address, "address")
    try:
        socket.create_connection((where.host, where.port), timeout=_CONNECT_S).close()
    except OSError as exc:
        raise YourError(
            f"no Ray cluster answers at {address} ({exc}); give the address that `ray start --head` printed, with "
            "the port (6379 by default)."
        ) from None


def read_resources(text: str, where: str) -> dict[str, float]:
    """Parses resources from the command line: `TPU=4,fast=1`.

    Raises:
      ClusterError: a part is not NAME=NUMBER.
    """
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not name or not value > 0:
            raise ClusterError(f"{where}: {part!r} is invalid; write NAME=NUMBER, separated by commas.")
        if name in ("CPU", "GPU"):
            raise ClusterError(f"{where}: for {name}, use the option {where.split('_')[0]}_{name.lower()}s.")
        found[name] = value
    return found
