"""The flags of distributed TensorFlow programs: `--ps_hosts --worker_hosts --job_name --task_index`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from trainband.cluster.cluster import Cluster
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import JOBS, Task, check_index
from trainband.errors import ClusterError

Hosts: TypeAlias = str | Sequence[str] | None
"""Addresses of a job: separated by commas, or a sequence; empty or `None` when the job has no tasks."""


def resolve(
    *,
    ps_hosts: Hosts = None,
    worker_hosts: Hosts = None,
    chief_hosts: Hosts = None,
    job_name: str | None = None,
    task_index: int | str | None = None,
) -> Cluster | None:
    """Returns the cluster that the flags describe, `None` when none is set.

    Args:
      ps_hosts, worker_hosts, chief_hosts: `host:port,host:port` or a sequence of `host:port`.
      job_name: this process's job.
      task_index: its index in the job. 0 with all others empty counts as not set, because many
        programs have 0 as the flag's default.

    Raises:
      ClusterError: some are set and others are missing, or one is malformed; the message names the flag.
    """
    hosts = {
        "chief": _read_hosts(chief_hosts, "chief_hosts"),
        "worker": _read_hosts(worker_hosts, "worker_hosts"),
        "ps": _read_hosts(ps_hosts, "ps_hosts"),
    }
    if not any(hosts.values()) and not job_name and task_index in (None, "", 0, "0"):
        return None
    if not (hosts["worker"] or hosts["chief"]):
        raise ClusterError("worker_hosts is missing: a cluster needs at least one worker (or chief_hosts).")
    if not job_name:
        raise ClusterError("job_name is missing; set it to this process's job.")
    if job_name not in JOBS:
        raise ClusterError(f"job_name = {job_name!r} is not a job; the jobs are {', '.join(JOBS)}.")
    if not hosts.get(job_name, ["an evaluator needs no address"]):
        raise ClusterError(f"{job_name}_hosts is missing, but job_name is {job_name!r}.")
    if task_index is None or task_index == "":
        raise ClusterError("task_index is missing; set it to this process's index in its job.")
    index = check_index(task_index, "task_index")
    spec = ClusterSpec({job: addresses for job, addresses in hosts.items() if addresses}, field="{job}_hosts")
    if job_name in spec.jobs and index not in spec.task_indices(job_name):
        raise ClusterError(
            f"task_index = {index}: the cluster has no {job_name}:{index}; {spec.describe_indices(job_name)}."
        )
    return Cluster(spec=spec, task=Task(job_name, index))


def _read_hosts(hosts: Hosts, flag: str) -> list[str]:
    if hosts is None or (isinstance(hosts, str) and not hosts.strip()):
        return []
    if not isinstance(hosts, str | Sequence):
        raise ClusterError(f"{flag} must be host:port,host:port or a sequence of these, got {hosts!r}.")
    return [part.strip() for part in hosts.split(",")] if isinstance(hosts, str) else list(hosts)
