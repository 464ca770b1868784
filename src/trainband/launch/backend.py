"""Protocols of a launcher backend: a platform that runs jobs, and one run of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.launch.events import Outcome
from trainband.launch.request import JobRequest


def drop(*_: object) -> None:
    """Does nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Watcher:
    """Callbacks that `Run.wait` calls as things happen.

    Attributes:
      line: called with (task, `stdout` or `stderr`, line) for each line that a task prints.
      started: called with each task that is started or, if this is known here, restarted.
      note: called with a sentence about what happens to the tasks or what the run is waiting for.
      keep_lines: how many of each task's last lines a run keeps.
    """

    line: Callable[[Task, str, str], None] = drop
    started: Callable[[Task], None] = drop
    report: Callable[[str], None] = drop
    keep_lines: int = 20


class Run(Protocol):
    """One job on a platform. Entering its `with` block starts it; leaving the block ends what is left of it and leaves
    no process, file or actor behind.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Waits until all tasks have exited.

        In the main thread, SIGINT, SIGTERM and SIGHUP to this process end the tasks.

        Raises:
          DeadlineExceeded: tasks still run after `timeout_s` seconds.
        """
        ...

    def interrupt(self, signal_number: int) -> None:
        """Ends the tasks as if this process had received the signal. Any thread may call it."""
        ...

    @property
    def spec(self) -> ClusterSpec | None:
        """The tasks and their addresses; `None` until they are known here."""
        ...

    @property
    def alive(self) -> frozenset[Task]:
        """The tasks that are not known to have exited."""
        ...

    @property
    def has_been_joined(self) -> bool:
        """Whether any task has taken part in the job, as far as is known."""
        ...

    @property
    def shared_directory(self) -> Path | None:
        """Where local tasks leave messages for the launcher, see `cluster.resolvers.joined`; `None` if remote."""
        ...

    def last_lines(self, task: Task) -> list[str]:
        """The last lines that a task has printed."""
        ...


class Backend(Protocol):
    """A platform that runs jobs. Each is a frozen dataclass whose fields are its command-line options."""

    def prepare(self, request: JobRequest, watcher: Watcher) -> Run:
        """Returns a run that has not been started.

        Raises:
          YourError: the platform is not available, an extra is missing, or the platform cannot run the request.
        """
        ...
