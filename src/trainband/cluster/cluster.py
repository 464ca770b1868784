"""The cluster as one of its tasks sees it."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.cluster.address import Address
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.errors import ClusterError


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """A cluster and which of its tasks this process is.

    Attributes:
      spec: all the tasks.
      task: this one. It stands in the spec; only a guest and an evaluator may be missing there, the latter because
        TensorFlow's launchers leave it out of the cluster (nobody needs to reach it).
      guest: whether this is a worker that stands in no spec and joins a job that runs. Its index is larger than
        those of all the planned workers, and nobody has an address for it: a worker calls, and is not called.

    Raises:
      ClusterError: the spec has no such task, and the message says which it has; or a guest is planned, or no worker.
    """

    spec: ClusterSpec
    task: Task
    guest: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.spec, ClusterSpec):
            raise ClusterError(f"Cluster.spec must be a ClusterSpec, got {self.spec!r}.")
        if not isinstance(self.task, Task):
            raise ClusterError(f"Cluster.task must be a Task, got {self.task!r}.")
        if self.guest:
            self._check_guest()
            return
        outsider = self.task.job == "evaluator" and "evaluator" not in self.spec.jobs
        if self.task not in self.spec and not outsider:
            raise ClusterError(
                f"Cluster.task: the cluster has no task {self.task}; {self.spec.describe_indices(self.task.job)}."
            )

    def _check_guest(self) -> None:
        if self.task.job != "worker":
            raise ClusterError(f"Cluster.guest: only a worker can be a guest, and this task is {self.task}.")
        planned = [task.index for task in self.spec.workers]
        if not planned:
            raise ClusterError(f"Cluster.guest: {self.task} cannot be a guest: the cluster has no workers.")
        if self.task.index <= max(planned):
            raise ClusterError(
                f"Cluster.guest: {self.task} is no guest's name, because the cluster plans workers up to index "
                f"{max(planned)}; a guest has a larger one."
            )

    @property
    def is_chief(self) -> bool:
        """Whether this task initialises the job and triggers its checkpoints. A guest never does."""
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
          ClusterError: this is a guest, or an evaluator that the cluster does not list.
        """
        if self.guest:
            raise ClusterError(f"{self.task} has no address: it is a guest of the job, and listens on nothing.")
        return self.spec.address(self.task)

    @property
    def training_index(self) -> int:
        """Which of all the tasks that train this one is, from 0, as a seed for its batches; 0 for the other tasks.

        The planned ones come first, numbered without a gap. A guest has a number of its own that is larger than these.
        """
        if self.guest:
            # What a worker's index is in a cluster with a gap for each worker that has not come.
            return self.task.index + (Task("chief", 0) in self.spec)
        return self.spec.workers.index(self.task) if self.task.trains else 0

    @property
    def device_index(self) -> int:
        """How many of the training tasks on this host come before this one; 0 for a task that does not train.

        Workers that share a host take the device `device_index % number of devices` each, so that two
        of them on a host with two GPUs do not crowd on the first. Two tasks share a host when their
        addresses have the same host part; the names of the loopback interface count as one. Nobody knows where
        a guest is: it counts all the tasks that train, so that guests started together take different devices.
        """
        if not self.task.trains:
            return 0
        if self.guest:
            return self.training_index
        return self._trained_here().index(self.task)

    @property
    def shares_its_host(self) -> bool:
        """Whether other tasks that train are on this one's host, see `device_index`; always true of a guest."""
        return self.guest or len(self._trained_here()) > 1

    @property
    def trainers_here(self) -> int | None:
        """The number of tasks that train on this task's host; `None` where this one is the only task of the cluster."""
        return None if {*self.spec.tasks()} == {self.task} else len(self._trained_here())

    def _trained_here(self) -> list[Task]:
        """The training tasks on this one's host."""
        host = self._host(self.task)
        return [task for task in self.spec.workers if self._host(task) == host]

    def _host(self, task: Task) -> str:
        return Address.parse(self.spec.address(task), str(task)).machine
