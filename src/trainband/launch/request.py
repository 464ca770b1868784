"""JobRequest: a description of a job, independent of the platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from trainband.cluster.task import Task
from trainband.errors import ClusterError
from trainband.launch.options import Restarts

Program: TypeAlias = Sequence[str] | Callable[[], object]
"""The program that each task runs with Python: a script, or `-m` and a module, and its arguments; or a function
without arguments, which is sent to the tasks by cloudpickle with what it uses; its result is dropped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """A job to run.

    Attributes:
      program: what each task runs.
      environment: the caller's environment.
      ps, workers: how many.
      chief: whether there is a chief beside the workers.
      evaluator: whether there is a task that evaluates the checkpoints.
      restarts: how often a failed task is restarted.
      min_workers: without ps, the smallest number of workers that continue; all when `None`.
      threads: the size of each task's XLA thread pool; the workers of a machine share its cores when `None`.
      tls: whether certificates are made for this job.

    Raises:
      ClusterError: a number is negative, no task would train, or `min_workers` is not from 1 to `workers` or there
        are ps.
    """

    program: Program
    environment: Mapping[str, str]
    ps: int = 1
    workers: int = 2
    chief: bool = False
    evaluator: bool = False
    restarts: Restarts = field(default_factory=Restarts)
    min_workers: int | None = None
    threads: int | None = None
    tls: bool = False

    def __post_init__(self) -> None:
        if not self.program:
            raise ClusterError("the job's program is empty: give a script, or -m and a module.")
        for name, number in (("ps", self.ps), ("workers", self.workers)):
            if number < 0:
                raise ClusterError(f"{name} must be 0 or more, got {number}.")
        if not self.workers and not self.chief:
            raise ClusterError("workers is 0 and there is no chief: no task would train.")
        if self.threads is not None and self.threads < 1:
            raise ClusterError(f"threads must be 1 or more, got {self.threads}.")
        if self.min_workers is not None:
            _check_min_workers(self.min_workers, ps=self.ps, workers=self.workers)

    @property
    def sizes(self) -> dict[str, int]:
        """How many tasks each job has; jobs without tasks are left out."""
        sizes = {"ps": self.ps, "chief": int(self.chief), "worker": self.workers, "evaluator": int(self.evaluator)}
        return {job: size for job, size in sizes.items() if size}

    def tasks(self) -> list[Task]:
        return [Task(job, index) for job, size in self.sizes.items() for index in range(size)]


def _check_min_workers(min_workers: int, *, ps: int, workers: int) -> None:
    if ps:
        raise ClusterError(
            f"min_workers={min_workers} is for a job without ps (--ps 0), whose workers can train only "
            f"together; this one has ps={ps}, so its workers may join and leave at any time."
        )
    if not 1 <= min_workers <= workers:
        raise ClusterError(
            f"min_workers must be from 1 to the number of workers, which is {workers}, got {min_workers}."
        )
