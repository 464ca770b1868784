"""Interfaces of the machines and tasks that a job's supervision uses."""

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
"""Placeholder, in a command or an environment, for the directory of the job's files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskProgram:
    """The program that one task runs.

    Attributes:
      command: what to run with Python: a script, or `-m` and a module, and its arguments.
      environment: the launcher's environment and this task's variables except `TF_CONFIG`. Another machine gets only
        what concerns the job: see `travelling`.
      files: a directory of the launcher's machine with the task's private files: the job's secret, its own
        certificate, a pickled function; `None` if it has none. `FILES` in the command and in the environment stands
        for the directory on the task's machine.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    files: Path | None


class RunningTask(Protocol):
    """A started task, which `SupervisedCluster` follows through file descriptors that wake a selector."""

    task: Task

    @property
    def address_lost(self) -> bool:
        """Whether it has failed and can run again, but not at its address."""
        ...

    @property
    def last_lines(self) -> Sequence[str]:
        """The last lines that it has printed on both streams."""
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
        """Ends the processes that the exited task left behind and frees everything. Idempotent."""
        ...


class Machines(Protocol):
    """Where the tasks of one job run.

    Attributes:
      is_here: whether it is this machine alone, whose files all tasks read.
    """

    is_here: bool

    def plan(self, sizes: Mapping[str, int]) -> ClusterSpec:
        """Returns addresses for this many tasks of each job. Called again for new ones when a worker group restarts.

        Raises:
          YourError: a machine cannot be reached or lacks something; the message says which, what and what to do.
        """
        ...

    def start(self, cluster: Cluster, program: TaskProgram, *, reaper: Reaper, keep_lines: int) -> RunningTask:
        """Starts a task.

        Args:
          reaper: ends what runs on this machine if the launcher is killed.
        """
        ...

    def close(self) -> None:
        """Frees everything. Idempotent; called after the tasks have ended."""
        ...
