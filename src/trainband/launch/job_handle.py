"""JobHandle: a Python program's handle of a job that it has started."""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque
from collections.abc import Callable

from trainband.cluster.task import Task
from trainband.errors import DeadlineExceeded, JobFailed, TrainbandError
from trainband.launch.backend import Backend, Run, Watcher
from trainband.launch.events import Outcome
from trainband.launch.request import JobRequest
from trainband.runtime.formatting import LINE_PREFIX, printable

KEEP = 10_000
"""How many lines `logs` keeps."""


class JobHandle:
    """A job on some platform. It runs until its tasks have exited or `stop` is called.

    Args:
      backend: the platform.
      request: the job.
      show: called with each line of a task, prefixed with the task's name, and with the launcher's own lines; `None`
        shows nothing.

    Raises:
      YourError: the job cannot be started.
    """

    def __init__(self, backend: Backend, request: JobRequest, *, show: Callable[[str], None] | None) -> None:
        self._show = show
        self._lines: deque[tuple[Task | None, str]] = deque(maxlen=KEEP)
        self._run: Run = backend.prepare(request, Watcher(line=self._add_line, report=self._add_report))
        self._outcome: Outcome | None = None
        self._tasks = request.tasks()
        self._error: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="trainband-job", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Waits until all tasks have exited. A Ctrl-C, or interrupting the notebook cell, ends the job.

        Args:
          timeout_s: the longest time to wait; without limit when `None`.

        Raises:
          JobFailed: a task has failed; the message has its last lines.
          DeadlineExceeded: tasks still run, and keep running.
          KeyboardInterrupt: the wait was interrupted, and the job has ended.
        """
        try:
            self._thread.join(timeout_s)
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._thread.is_alive():
            names = ", ".join(sorted(map(str, self._run.alive)))
            raise DeadlineExceeded(f"{names} did not exit within {timeout_s:g} s.")
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        if self._outcome.kind == "failed":
            raise self._failure(self._outcome)
        return self._outcome

    def stop(self) -> None:
        """Ends the job: tasks get SIGTERM, time to save, then SIGKILL. Returns when all have exited."""
        while self._thread.is_alive():
            self._run.interrupt(signal.SIGTERM)
            self._thread.join(60.0)  # then the second signal, which kills

    def status(self) -> dict[str, str]:
        """Returns each task's state by its name: `running`, `exited`, or for example `failed: exit code 3`."""
        alive = self._run.alive if self._outcome is None else frozenset()
        found = {str(task): "running" if task in alive else "exited" for task in self._tasks}
        if self._outcome is not None and self._outcome.failed is not None:
            found[str(self._outcome.failed)] = f"failed: {self._outcome.reason}"
        return found

    def logs(self, task: str | None = None) -> list[str]:
        """The last lines that the tasks have printed, at most `KEEP`.

        Args:
          task: the name of a task, such as `worker:0`, for its lines only; when `None`, all lines, each prefixed with
            its task's name, and the launcher's own.

        Raises:
          ClusterError: no task has that name.
        """
        lines = list(self._lines)
        if task is None:
            return [_prefixed(one, text) for one, text in lines]
        wanted = Task.parse(task)
        return [text for one, text in lines if one == wanted]

    def _follow(self) -> None:
        try:
            with self._run:
                self._started.set()
                self._outcome = self._run.wait()
        except BaseException as exc:  # raised in the waiting thread
            self._error = exc
        finally:
            self._started.set()

    def _failure(self, outcome: Outcome) -> TrainbandError:
        if outcome.failed is None:  # the platform has ended the job
            return JobFailed(f"{outcome.reason}.")
        last = "\n".join(f"    {line}" for line in self._run.last_lines(outcome.failed))
        return JobFailed(f"{outcome.failed} failed: {outcome.reason}. Its last lines:\n{last}")

    def _add_line(self, task: Task, stream: str, text: str) -> None:  # noqa: ARG002 - a watcher's signature
        self._add(task, text)

    def _add_report(self, text: str) -> None:
        self._add(None, printable(text, newline="\n    "))

    def _add(self, task: Task | None, text: str) -> None:
        self._lines.append((task, text))
        if self._show is not None:
            self._show(_prefixed(task, text))

    def __enter__(self) -> JobHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _prefixed(task: Task | None, text: str) -> str:
    return f"{LINE_PREFIX}{text}" if task is None else f"[{task}] {text}"


def show_on_stdout(text: str) -> None:
    """Prints a line, in a notebook below the cell."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
