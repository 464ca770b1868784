"""The address at which a task serves its metrics for Prometheus, from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainband.cluster.cluster import Cluster
from trainband.errors import YourError

PORT, HOST = "TRAINBAND_METRICS_PORT", "TRAINBAND_METRICS_HOST"
LOOPBACK = "127.0.0.1"
_PORT = re.compile(r"([0-9]{1,5})(\+?)")


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where to listen; port 0 stands for any free port."""

    host: str
    port: int


def resolve_metrics(cluster: Cluster | None, environ: Mapping[str, str] | None = None) -> MetricsAddress | None:
    """Returns where this task must serve its metrics; `None` if it need not.

    `TRAINBAND_METRICS_PORT` is a port, 0 for any free port, or a port followed by `+` for tasks that share a
    machine: each adds its number, see `task_number`.

    Args:
      cluster: this task's view of its cluster; `None` for a standalone process.
      environ: the environment to read; `os.environ` when `None`.

    Raises:
      YourError: the value is not a port, or the sum is too large for one.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(PORT, "")
    if not text:
        return None
    match = _PORT.fullmatch(text)
    if match is None or int(match[1]) > 65535:
        raise YourError(
            f"{PORT} = {text!r}: write a port from 0 to 65535 (0: any free port), or for example 9400+ if tasks "
            "share a machine and each must add its number."
        )
    port = int(match[1])
    if port and match[2]:
        number = task_number(cluster)
        port += number
        if port > 65535:
            raise YourError(
                f"{PORT} = {text!r}: with the number of this task, {number}, the port would be {port}, and the largest "
                "is 65535; choose a smaller one."
            )
    return MetricsAddress(environ.get(HOST, "") or LOOPBACK, port)


def task_number(cluster: Cluster | None) -> int:
    """Returns the number of a task in its cluster, from 0: first the ps, then chief and workers, then the evaluator,
    then elastic workers. 0 for a standalone process.
    """
    if cluster is None:
        return 0
    spec, task = cluster.spec, cluster.task
    tasks = [*spec.ps, *spec.workers, *spec.evaluators]
    if task in tasks:
        return tasks.index(task)
    if cluster.elastic:
        return len(tasks) + task.index - max(worker.index for worker in spec.workers) - 1
    return len(tasks)  # an evaluator that the cluster does not list
