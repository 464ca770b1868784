"""TaskLogs: what each task of a job prints, in a file of its own."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from trainband.cluster.task import Task
from trainband.errors import YourError

MOST_BYTES = 64 << 20
"""Of one file. A longer one becomes `worker-1.log.1`, in place of the one before, and another begins."""
_OPEN_FILES = 32


def _now() -> datetime:
    return datetime.now(UTC)


class TaskLogs:
    """Appends every line of each task to `worker-1.log` and the like in a directory, from both of its streams.

    Each start of a task is marked by a line that begins with `--- `. A file that cannot be written any more is said
    once, and left alone: the training goes on.

    Args:
      directory: made where it is not there.
      note: told what is wrong.
      most_bytes: see `MOST_BYTES`.
      now: what time it is.

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
        self._note = note
        self._most_bytes = most_bytes
        self._now = now
        self._open: OrderedDict[Task, BinaryIO] = OrderedDict()
        self._given_up: set[Task] = set()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise YourError(f"--log-dir {directory}: it cannot be made ({exc.strerror}).") from None
        if not os.access(directory, os.W_OK | os.X_OK):
            raise YourError(f"--log-dir {directory}: this user may not write there.")

    def path(self, task: Task) -> Path:
        """The file of a task."""
        return self._directory / f"{task.job}-{task.index}.log"

    def started(self, task: Task) -> None:
        """Marks that a task has been started."""
        self.line(task, f"--- {self._now():%Y-%m-%dT%H:%M:%SZ} {task} is started")

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
            self._note(f"WARNING: {self.path(task)} cannot be written any more ({exc.strerror}); {task} runs on")

    def _file(self, task: Task) -> BinaryIO:
        file = self._open.get(task)
        if file is None:
            if len(self._open) >= _OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            file = self._open[task] = self.path(task).open("ab", buffering=0)
        self._open.move_to_end(task)
        return file

    def close(self) -> None:
        """Closes the files. Idempotent."""
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> TaskLogs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
