"""The cluster as one of its tasks sees it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ClusterError
from .address import Address
from .spec import ClusterSpec
from .task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """A cluster and which of its tasks this process is.

    Attributes:
      spec: all the tasks.
      task: this one. It stands in the spec; only an evaluator may be missing there, because
        TensorFlow's launchers leave it out of the cluster (nobody needs to reach it).

    Raises:
      ClusterError: the spec has no such task; the message says which it has.
    """

    spec: ClusterSpec
    task: Task

    def __post_init__(self) -> None:
        if not isinstance(self.spec, ClusterSpec):
            raise ClusterError(f"Cluster.spec must be a ClusterSpec, got {self.spec!r}.")
        if not isinstance(self.task, Task):
            raise ClusterError(f"Cluster.task must be a Task, got {self.task!r}.")
        outsider = self.task.job == "evaluator" and "evaluator" not in self.spec.jobs
        if self.task not in self.spec and not outsider:
            raise ClusterError(
                f"Cluster.task: the cluster has no task {self.task}; {self.spec.describe_indices(self.task.job)}."
            )

    @property
    def is_chief(self) -> bool:
        """Whether this task initialises the job and triggers its checkpoints."""
        chief = Task("chief", 0)
        return self.task == chief or (self.task == Task("worker", 0) and chief not in self.spec)

    @property
    def is_ps(self) -> bool:
        """Whether this task is a parameter server."""
        return self.task.job == "ps"

    @property
    def address(self) -> str:
        """Where the others reach this task, `host:port`.

        Raises:
          ClusterError: this is an evaluator that the cluster does not list.
        """
        return self.spec.address(self.task)

    @property
    def training_index(self) -> int:
        """Which of all the tasks that train this one is, from 0, as a seed for its batches; 0 for the other tasks."""
        return self.spec.workers.index(self.task) if self.task.trains else 0

    @property
    def device_index(self) -> int:
        """How many of the training tasks on this host come before this one; 0 for a task that does not train.

        Workers that share a host take the device `device_index % number of devices` each, so that two
        of them on a host with two GPUs do not crowd on the first. Two tasks share a host when their
        addresses have the same host part; the names of the loopback interface count as one.
        """
        if not self.task.trains:
            return 0
        host = self._host(self.task)
        return [task for task in self.spec.workers if self._host(task) == host].index(self.task)

    def _host(self, task: Task) -> str:
        return Address.parse(self.spec.address(task), str(task)).machine
