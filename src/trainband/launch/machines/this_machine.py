"""ThisMachine: the tasks of a job as processes here."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from trainband.cluster.cluster import Cluster
from trainband.cluster.spec import ClusterSpec
from trainband.launch.environment import task_environment
from trainband.launch.machine import FILES, TaskProgram
from trainband.launch.ports import ReservedPorts
from trainband.launch.process import Reaper, TaskProcess
from trainband.runtime.available_memory import OomKills

_logger = logging.getLogger(__name__)


class ThisMachine:
    """The launcher's own machine, as `Machines`.

    Args:
      host: the address of this machine that the tasks serve on.
      threads: the size of each task's XLA thread pool; when `None`, the workers share the cores.
    """

    is_here = True

    def __init__(self, host: str, threads: int | None) -> None:
        self._host = host
        self._threads = threads
        self._reserved: ReservedPorts | None = None
        self._oom_kills = OomKills()

    def plan(self, sizes: Mapping[str, int]) -> ClusterSpec:
        before, self._reserved = self._reserved, ReservedPorts(sum(sizes.values()), self._host)
        if before is not None:
            before.close()  # only now, so that no task gets a port that another just had
        addresses = iter(self._reserved.addresses)
        return ClusterSpec({job: [next(addresses) for _ in range(size)] for job, size in sizes.items()})

    def start(self, cluster: Cluster, program: TaskProgram, *, reaper: Reaper, keep_lines: int) -> TaskProcess:
        place = str(program.files)
        environ = task_environment(
            {name: value.replace(FILES, place) for name, value in program.environment.items()},
            cluster=cluster,
            trainers=self.trainers(cluster),
            cores=cores(),
            threads=self._threads,
        )
        command = [word.replace(FILES, place) for word in program.command]
        process = TaskProcess(
            cluster.task, command, environ=environ, reaper=reaper, keep_lines=keep_lines, oom_kills=self._oom_kills
        )
        _logger.info("started %s as process %d", cluster.task, process.pid)
        return process

    def trainers(self, cluster: Cluster) -> int | None:
        """Returns the number of training tasks on this machine; `None` for a task that has it to itself."""
        tasks = list(cluster.spec.tasks())
        alone = len({*tasks, cluster.task}) == 1
        return None if alone else len(cluster.spec.workers)

    def close(self) -> None:
        if self._reserved is not None:
            self._reserved.close()


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
