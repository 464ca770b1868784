"""Where a task serves its metrics for Prometheus, from the environment that its launcher, or whoever starts it, has
set.
"""

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
    """Where to listen; port 0 stands for any that is free."""

    host: str
    port: int


def resolve_metrics(cluster: Cluster | None, environ: Mapping[str, str] | None = None) -> MetricsAddress | None:
    """Where this task is asked to serve its metrics; `None` where it is not.

    `TRAINBAND_METRICS_PORT` is a port, 0 for any that is free, or one with a `+` behind it for tasks that share a
    machine: each adds its number, see `task_number`.

    Args:
      cluster: and which of its tasks this is; `None` for a process that stands alone.
      environ: the environment to look in; `os.environ` when `None`.

    Raises:
      YourError: it is no port, or the sum is too large for one.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(PORT, "")
    if not text:
        return None
    match = _PORT.fullmatch(text)
    if match is None or int(match[1]) > 65535:
        raise YourError(
            f"{PORT} = {text!r}: write a port from 0 to 65535 (0: any that is free), or such as 9400+ where tasks "
            "share a machine and each is to add its number."
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
    """The place of a task among all those of its cluster, from 0: first the ps, then chief and workers, then the
    evaluator, then workers that nobody has planned. 0 for a process that stands alone.
    """
    if cluster is None:
        return 0
    spec, task = cluster.spec, cluster.task
    tasks = [*spec.ps, *spec.workers, *spec.evaluators]
    if task in tasks:
        return tasks.index(task)
    if cluster.guest:
        return len(tasks) + task.index - max(worker.index for worker in spec.workers) - 1
    return len(tasks)  # an evaluator that the cluster does not list
