"""`tf.train.ClusterSpec`: the tasks of a cluster and their addresses; and the same as messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class JobDef:
    """A job: its name, and the addresses of its tasks by index."""

    name: str = ""
    tasks: dict[int, str] = field(default_factory=dict)


class JobDefs(list[JobDef]):
    """A list of jobs, to which `add` adds one."""

    def add(self, name: str = "", tasks: dict[int, str] | None = None) -> JobDef:
        """Add a job, and return it."""
        self.append(JobDef(name, dict(tasks or {})))
        return self[-1]


class ClusterDef:
    """The jobs of a cluster."""

    def __init__(self, job: Iterable[JobDef] = ()) -> None:
        self.job = JobDefs(job)
        """Its jobs."""


@dataclass(slots=True)
class ServerDef:
    """A task of a cluster."""

    cluster: ClusterDef = field(default_factory=ClusterDef)
    job_name: str = ""
    task_index: int = 0
    protocol: str = ""
    default_session_config: Any = None


class ClusterSpec:
    """A cluster as `{job: addresses}`, as `{job: {index: address}}`, or as a `ClusterDef`.

    Raises:
      TypeError: it is no such mapping.
    """

    def __init__(self, cluster: Any) -> None:
        if isinstance(cluster, ClusterSpec):
            cluster = cluster.as_dict()
        elif hasattr(cluster, "job"):
            cluster = {job.name: dict(job.tasks) for job in cluster.job}
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
            self._jobs[str(job)] = {int(index): _address(job, address) for index, address in sorted(pairs)}

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

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job's tasks by index, `None` for an index without a task."""
        tasks = self._of(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def as_cluster_def(self) -> ClusterDef:
        """As TensorFlow writes it into messages."""
        return ClusterDef([JobDef(name, dict(self._jobs[name])) for name in sorted(self._jobs)])

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


def _address(job: Any, address: Any) -> str:
    if isinstance(address, bytes):
        return address.decode()
    if not isinstance(address, str):
        raise TypeError(f"The addresses of job {job!r} must be strings, got {address!r}.")
    return address
