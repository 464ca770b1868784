"""The tasks of a cluster and their addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from trainband.cluster.address import Address
from trainband.cluster.task import JOBS, Task, check_index, check_job
from trainband.errors import ClusterError

Addresses: TypeAlias = Sequence[str] | Mapping[int, str] | Mapping[str, str]
"""The tasks of a job: all of them in order, or some of them by their index (a string of digits in JSON)."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class ClusterSpec:
    """A cluster as `{job: addresses}`, with the meaning of `tf.train.ClusterSpec`.

    ::

        ClusterSpec({"ps": ["a:2222"], "worker": ["b:2222", "c:2222"]})
        ClusterSpec({"ps": ["a:2222"], "worker": {1: "c:2222"}})         # this task knows only worker:1

    Immutable and hashable. Equal specs list their tasks in the same order, in whatever order they were
    written: chief, worker, ps, evaluator. Every task of a job must get the same lists.

    Args:
      cluster: a mapping, or another `ClusterSpec`.
      field: what error messages call the tasks of a job, with `{job}` for its name.

    Raises:
      ClusterError: an unknown job, a malformed or duplicate address, a negative index, more than one
        chief, or a wrong type. The message names the entry.

    Source: tensorflow/python/training/server_lib.py, `class ClusterSpec`.
    """

    _jobs: tuple[tuple[str, tuple[tuple[int, str], ...]], ...]

    def __init__(self, cluster: ClusterSpec | Mapping[str, Addresses], *, field: str = "ClusterSpec.{job}") -> None:
        jobs = cluster.as_dict() if isinstance(cluster, ClusterSpec) else cluster
        object.__setattr__(self, "_jobs", _read(jobs, field))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """`{job: [address, ...]}`, or `{job: {index: address}}` for a job with gaps in its indices."""
        result: dict[str, list[str] | dict[int, str]] = {}
        for job, tasks in self._jobs:
            dense = all(index == place for place, (index, _) in enumerate(tasks))
            result[job] = [address for _, address in tasks] if dense else dict(tasks)
        return result

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs that were given."""
        return [job for job, _ in self._jobs]

    def num_tasks(self, job: str) -> int:
        """How many tasks of a job are known.

        Raises:
          ClusterError: the cluster has no such job; the methods below raise it, too.
        """
        return len(self._addresses(job))

    def task_indices(self, job: str) -> list[int]:
        """The known indices of a job, in order."""
        return list(self._addresses(job))

    def task_address(self, job: str, index: int) -> str:
        """A task's `host:port`.

        Raises:
          ClusterError: the job has no such task, or the cluster no such job.
        """
        addresses = self._addresses(job)
        if index not in addresses:
            raise ClusterError(f"the cluster has no task {job}:{index}; {self.describe_indices(job)}.")
        return addresses[index]

    def job_tasks(self, job: str) -> list[str | None]:
        """The addresses of a job by index, `None` for an unknown index."""
        addresses = self._addresses(job)
        return [addresses.get(index) for index in range(max(addresses, default=-1) + 1)]

    def tasks(self) -> Iterator[Task]:
        """Every known task: chief, worker, ps, evaluator, each job by index."""
        return (Task(job, index) for job, tasks in self._jobs for index, _ in tasks)

    def __contains__(self, task: object) -> bool:
        return isinstance(task, Task) and task.index in dict(self._jobs_by_name().get(task.job, ()))

    def address(self, task: Task) -> str:
        """A task's `host:port`. Raises `ClusterError` if the cluster has no such task."""
        return self.task_address(task.job, task.index)

    @property
    def chief(self) -> Task:
        """The task that initialises the job: `chief:0` if there is one, else `worker:0`.

        Raises:
          ClusterError: the cluster has neither.
        """
        for task in (Task("chief", 0), Task("worker", 0)):
            if task in self:
                return task
        raise ClusterError(f"the cluster has neither chief:0 nor worker:0 to initialise it: {self!r}.")

    @property
    def workers(self) -> tuple[Task, ...]:
        """The training tasks: the chief, if the cluster has one, then the workers."""
        return tuple(task for task in self.tasks() if task.trains)

    @property
    def ps(self) -> tuple[Task, ...]:
        """The parameter servers."""
        return tuple(task for task in self.tasks() if task.job == "ps")

    @property
    def evaluators(self) -> tuple[Task, ...]:
        """The tasks that evaluate checkpoints beside the job."""
        return tuple(task for task in self.tasks() if task.job == "evaluator")

    def describe_indices(self, job: str) -> str:
        """Returns a text that lists the tasks of a job, for messages."""
        indices = [str(index) for index, _ in self._jobs_by_name().get(job, ())]
        if not indices:
            return f"it has no {job} tasks, only the jobs {', '.join(self.jobs) or '(none)'}"
        return f"its {job} {'index is' if len(indices) == 1 else 'indices are'} {', '.join(indices)}"

    def _jobs_by_name(self) -> dict[str, tuple[tuple[int, str], ...]]:
        return dict(self._jobs)

    def _addresses(self, job: str) -> dict[int, str]:
        jobs = self._jobs_by_name()
        if job not in jobs:
            raise ClusterError(f"the cluster has no job {job!r}; it has {', '.join(jobs) or 'none'}.")
        return dict(jobs[job])


def _read(cluster: object, field: str) -> tuple[tuple[str, tuple[tuple[int, str], ...]], ...]:
    if not isinstance(cluster, Mapping):
        raise ClusterError(f"a cluster must be a mapping {{job: [address, ...]}}, got {cluster!r}.")
    jobs: dict[str, dict[int, str]] = {}
    for job, tasks in cluster.items():
        name = field.format(job=job)
        jobs[check_job(job, name)] = _read_job(tasks, name)
    chiefs = list(jobs.get("chief", ()))
    if chiefs not in ([], [0]):
        raise ClusterError(
            f"{field.format(job='chief')}: a cluster has one chief, at index 0; got the indices {chiefs}."
        )
    taken: dict[tuple[str, int], str] = {}
    for job, tasks in jobs.items():
        for index, address in tasks.items():
            where = f"{field.format(job=job)}[{index}]"
            parsed = Address.parse(address, where)
            # By machine, not by text: `localhost:2222` and `127.0.0.1:2222` are the same.
            other = taken.setdefault((parsed.machine, parsed.port), where)
            if other != where:
                raise ClusterError(f"{where} = {address!r}: {other} already has that address; each task needs its own.")
    return tuple((job, tuple(sorted(jobs[job].items()))) for job in JOBS if job in jobs)


def _read_job(tasks: object, field: str) -> dict[int, str]:
    if isinstance(tasks, Mapping):
        result: dict[int, str] = {}
        for key, address in tasks.items():
            index = check_index(key, f"{field}: a task's index")
            if index in result:
                raise ClusterError(f"{field}: the index {index} is listed twice.")
            result[index] = address
        return result
    if isinstance(tasks, Sequence) and not isinstance(tasks, str | bytes):
        return dict(enumerate(tasks))
    raise ClusterError(f"{field} must be a list [address, ...] or a mapping {{index: address}}, got {tasks!r}.")
