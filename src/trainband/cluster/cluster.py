"""The cluster as one of its tasks sees it."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.cluster.address import Address
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.errors import ClusterError


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """A cluster and the task in it that this process is.

    Attributes:
      spec: all the tasks.
      task: this one. The spec lists it unless it is an elastic worker or an evaluator, which TensorFlow's launchers
        leave out of the cluster (no task needs to reach it).
      elastic: whether this is an elastic worker, which is in no spec and joins a running job. Its index is larger than
        those of all planned workers, and it has no address: workers call and are not called.

    Raises:
      ClusterError: the spec has no such task, and the message lists those it has; or an elastic worker is
        planned, or there are no workers to join.
    """

    spec: ClusterSpec
    task: Task
    elastic: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.spec, ClusterSpec):
            raise ClusterError(f"Cluster.spec must be a ClusterSpec, got {self.spec!r}.")
        if not isinstance(self.task, Task):
            raise ClusterError(f"Cluster.task must be a Task, got {self.task!r}.")
        if self.elastic:
            self._check_elastic()
            return
        outsider = self.task.job == "evaluator" and "evaluator" not in self.spec.jobs
        if self.task not in self.spec and not outsider:
            raise ClusterError(
                f"Cluster.task: the cluster has no task {self.task}; {self.spec.describe_indices(self.task.job)}."
            )

    def _check_elastic(self) -> None:
        if self.task.job != "worker":
            raise ClusterError(f"Cluster.elastic: only a worker can be elastic, and this task is {self.task}.")
        planned = [task.index for task in self.spec.workers]
        if not planned:
            raise ClusterError(f"Cluster.elastic: {self.task} cannot be elastic: the cluster has no workers.")
        if self.task.index <= max(planned):
            raise ClusterError(
                f"Cluster.elastic: {self.task} is not the name of an elastic worker: the cluster plans workers up to "
                f"index {max(planned)}, and an elastic one has a larger index."
            )

    @property
    def is_chief(self) -> bool:
        """Whether this task initialises the job and triggers its checkpoints. Never true of an elastic worker."""
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
          ClusterError: this is an elastic worker, or an evaluator that the cluster does not list.
        """
        if self.elastic:
            raise ClusterError(f"{self.task} has no address: it is an elastic worker and listens on no port.")
        return self.spec.address(self.task)

    @property
    def training_index(self) -> int:
        """The number of this task among the training tasks, from 0, as a seed for its batches; 0 for other tasks.

        The planned ones come first, numbered without gaps. An elastic worker has a larger number.
        """
        if self.elastic:
            # The index in a cluster with a gap for each missing worker.
            return self.task.index + (Task("chief", 0) in self.spec)
        return self.spec.workers.index(self.task) if self.task.trains else 0

    @property
    def device_index(self) -> int:
        """How many of the training tasks on this host come before this one; 0 for a task that does not train.

        Each of the workers that share a host takes the device `device_index % number of devices`, so that two
        of them on a host with two GPUs do not both use the first. Two tasks share a host if their
        addresses have the same host part; the names of the loopback interface count as one. The host of an elastic
        worker is unknown: it counts all training tasks, so that several that start together take different devices.
        """
        if not self.task.trains:
            return 0
        if self.elastic:
            return self.training_index
        return self._trained_here().index(self.task)

    @property
    def shares_its_host(self) -> bool:
        """Whether other training tasks are on this task's host, see `device_index`; always true if elastic."""
        return self.elastic or len(self._trained_here()) > 1

    @property
    def trainers_here(self) -> int | None:
        """The number of training tasks on this task's host; `None` if it is the cluster's only task."""
        return None if {*self.spec.tasks()} == {self.task} else len(self._trained_here())

    def _trained_here(self) -> list[Task]:
        """The training tasks on this task's host."""
        host = self._host(self.task)
        return [task for task in self.spec.workers if self._host(task) == host]

    def _host(self, task: Task) -> str:
        return Address.parse(self.spec.address(task), str(task)).machine
