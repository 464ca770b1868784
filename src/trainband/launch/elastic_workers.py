"""Workers on this machine that join a running job whose cluster spec does not list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainband.cluster.address import Address
from trainband.cluster.cluster import Cluster
from trainband.cluster.worker_group import WorkerGroup
from trainband.errors import ClusterError
from trainband.launch.backend import Watcher
from trainband.launch.machines.this_machine import ThisMachine
from trainband.launch.options import Restarts
from trainband.launch.request import JobRequest
from trainband.launch.supervised_cluster import SupervisedCluster
from trainband.runtime.overrides import override

_RESTARTS = Restarts()
_UNWATCHED = Watcher()


class LocalElasticWorkers(SupervisedCluster):
    """Starts elastic workers of a job as processes of this machine and supervises them until all have exited.

    Args:
      workers: one for each process, all with the same spec.
      command, environ, threads, restarts: as for `LocalCluster`.

    Raises:
      ClusterError: there is no worker, one of them is not elastic, two have the same name, or their specs differ.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        workers: Sequence[Cluster],
        environ: Mapping[str, str],
        threads: int | None = None,
        watcher: Watcher = _UNWATCHED,
        restarts: Restarts = _RESTARTS,
    ) -> None:
        names = [str(worker.task) for worker in workers]
        if not workers:
            raise ClusterError("LocalElasticWorkers.workers is empty: no task would train.")
        if not all(worker.elastic for worker in workers):
            raise ClusterError(f"LocalElasticWorkers.workers: the cluster lists one of {', '.join(names)}.")
        if len(set(names)) < len(names) or any(worker.spec != workers[0].spec for worker in workers):
            raise ClusterError(f"LocalElasticWorkers.workers: {', '.join(names)} are not different workers of one job.")
        request = JobRequest(program=command, ps=0, workers=len(workers), restarts=restarts, environment=environ)
        super().__init__(request, _ElasticMachine(workers, threads), watcher)
        self._workers = list(workers)
        self._needs_secret = False  # they use the job's

    @override
    def _plan(self) -> list[Cluster]:
        return self._workers

    @override
    def _worker_group(self) -> WorkerGroup | None:
        return None  # each trains with the job's ps, independent of the others


class _ElasticMachine(ThisMachine):
    """The local machine, whose cores elastic workers share with the job's local tasks."""

    def __init__(self, workers: Sequence[Cluster], threads: int | None) -> None:
        super().__init__("127.0.0.1", threads)  # unused: they serve nothing
        self._workers = workers

    @override
    def trainers(self, cluster: Cluster) -> int | None:
        spec = cluster.spec
        here = [task for task in spec.workers if Address.parse(spec.address(task), str(task)).is_loopback]
        trainers = len(self._workers) + len(here)
        return trainers if trainers > 1 else None
