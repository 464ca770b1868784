"""What the supervision of a job needs of the machines that its tasks run on."""

from __future__ import annotations

import selectors
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainband.cluster.cluster import Cluster
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.launch.process import Reaper

FILES = "{files}"
"""Stands, in a command and in an environment, for the directory that has the files of the job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskProgram:
    """What one task is to run.

    Attributes:
      command: what to run with Python: a script, or `-m` and a module, and its arguments.
      environment: the launcher's environment, with what makes it this task but for `TF_CONFIG`. Another machine takes
        what concerns the job: see `travelling`.
      files: a directory of the launcher's machine with what the task reads and nobody else may: the job's secret,
        certificates, a pickled function; `None` where there is nothing. `FILES` in the command and in the environment
        stands for the place where that is on the task's machine.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    files: Path | None


class RunningTask(Protocol):
    """A task that has been started, as `SupervisedCluster` follows it: by file descriptors that wake a selector."""

    task: Task

    @property
    def last_lines(self) -> Sequence[str]:
        """The last lines that it has printed, on both streams."""
        ...

    @property
    def reports_exit(self) -> bool:
        """Whether its exit wakes the selector; otherwise `status` must be polled."""
        ...

    def register(self, selector: selectors.BaseSelector) -> None:
        """Registers the task's output and its exit with a selector. The keys' data: (self, whether it is the exit)."""
        ...

    def read(self, selector: selectors.BaseSelector) -> Iterator[tuple[str, str]]:
        """The lines that have arrived, as (name of the stream, line). Never waits."""
        ...

    def finish(self) -> Iterator[tuple[str, str]]:
        """The last lines of a task that has exited, if they have no line end."""
        ...

    def status(self) -> int | None:
        """The exit code, or minus the number of the signal that killed it; `None` while it runs."""
        ...

    def unregister_exit(self, selector: selectors.BaseSelector) -> None:
        """Unregisters the exit, which has been handled, from the selector."""
        ...

    def send(self, number: int) -> bool:
        """Sends a signal to the task and the processes that it has started. Returns whether there is any."""
        ...

    def close(self) -> None:
        """Ends what the exited task has left behind, and frees everything. Idempotent."""
        ...


class Machines(Protocol):
    """Where the tasks of one job run.

    Attributes:
      is_here: whether it is this machine alone, whose files all tasks read.
    """

    is_here: bool

    def plan(self, sizes: Mapping[str, int]) -> ClusterSpec:
        """Addresses for so many tasks of each job. Called again when a worker group restarts, at new ones.

        Raises:
          YourError: a machine cannot be reached or lacks something; the message says which, what and what to do.
        """
        ...

    def start(self, cluster: Cluster, program: TaskProgram, *, reaper: Reaper, keep_lines: int) -> RunningTask:
        """Starts a task.

        Args:
          cluster: the tasks, and which of them this is.
          program: what it runs.
          reaper: ends what runs on this machine if the launcher is killed.
          keep_lines: how many of its last lines to keep.
        """
        ...

    def close(self) -> None:
        """Frees everything. Idempotent; the tasks have been ended by then."""
        ...
