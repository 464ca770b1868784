"""The output of each task of a job, in its own file."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from trainband.cluster.task import Task
from trainband.errors import YourError
from trainband.runtime.regular_files import append_regular

MOST_BYTES = 64 << 20
"""Most bytes of a file. It is then renamed to `worker-1.log.1`, replacing the previous one."""
_OPEN_FILES = 32


def _now() -> datetime:
    return datetime.now(UTC)


class TaskLogs:
    """Appends every line of each task's stdout and stderr to a file such as `worker-1.log`.

    A line that begins with `--- ` marks each start of a task. If a file can no longer be written, one warning says so,
    and training continues.

    Args:
      directory: made if it does not exist.
      most_bytes: see `MOST_BYTES`.

    Raises:
      YourError: the directory cannot be made or written.
    """

    def __init__(
        self,
        directory: Path,
        note: Callable[[str], None],
        *,
        most_bytes: int = MOST_BYTES,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._directory = directory
        self._report = note
        self._most_bytes = most_bytes
        self._now = now
        self._open: OrderedDict[Task, BinaryIO] = OrderedDict()
        self._given_up: set[Task] = set()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise YourError(f"--log-dir {directory} cannot be made ({exc.strerror}).") from None
        if not os.access(directory, os.W_OK | os.X_OK):
            raise YourError(f"--log-dir {directory} cannot be written by this user.")

    def path(self, task: Task) -> Path:
        """The file of a task."""
        return self._directory / f"{task.job}-{task.index}.log"

    def started(self, task: Task) -> None:
        """Marks that a task has been started."""
        self.line(task, f"--- {self._now():%Y-%m-%dT%H:%M:%SZ} {task} started")

    def line(self, task: Task, text: str) -> None:
        """Appends a line."""
        if task in self._given_up:
            return
        try:
            file = self._file(task)
            file.write(f"{text}\n".encode(errors="backslashreplace"))
            if file.tell() > self._most_bytes:
                self._open.pop(task).close()
                self.path(task).replace(self.path(task).with_suffix(".log.1"))
        except OSError as exc:
            self._given_up.add(task)
            self._report(f"WARNING: {self.path(task)} can no longer be written ({exc.strerror}); {task} keeps running")

    def _file(self, task: Task) -> BinaryIO:
        file = self._open.get(task)
        if file is None:
            if len(self._open) >= _OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            file = self._open[task] = append_regular(self.path(task))
        self._open.move_to_end(task)
        return file

    def close(self) -> None:
        """Closes the files. Idempotent."""
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> TaskLogs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
