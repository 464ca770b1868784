"""Parsing the output of the launcher within a Slurm job back into lines of its tasks."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainband.cluster.task import Task
from trainband.launch.backend import Watcher
from trainband.launch.output_lines import LineSplitter
from trainband.runtime.regular_files import regular_file

_OF_TASK = re.compile(r"\[(chief|worker|ps|evaluator):(\d{1,9})\] (.*)", re.DOTALL)
_FAILED = re.compile(r"── (chief|worker|ps|evaluator):(\d{1,9}) failed: (.*?) ──.*")
_FRAME = ("──", "│ ")
_OURS = "trainband: "
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A line that a task has printed."""

    task: Task
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The task that made the job fail, and how."""

    task: Task
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence of the launcher, Slurm or the batch script."""

    text: str


def read_line(line: str) -> TaskLine | Failure | Note | None:
    """Parses a line of the launcher; returns `None` for the frame with a failed task's last lines, which the caller
    shows itself.
    """
    if match := _OF_TASK.fullmatch(line):
        return TaskLine(Task(match[1], int(match[2])), match[3])
    if match := _FAILED.fullmatch(line):
        return Failure(Task(match[1], int(match[2])), match[3])
    if line.startswith(_FRAME) or not line.strip():
        return None
    return Note(line.removeprefix(_OURS))


class GrowingFile:
    """A file that another machine appends to, read as it grows. It need not exist yet.

    Each read reopens it; otherwise NFS would keep showing the first content.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._splitter = LineSplitter()

    def read(self) -> Iterator[str]:
        """Yields the lines that have arrived."""
        try:
            with regular_file(self._path) as file:
                file.seek(self._at)
                while data := file.read(_READ_BYTES):
                    self._at += len(data)
                    yield from self._splitter.feed(data)
        except FileNotFoundError:
            return

    def finish(self) -> Iterator[str]:
        """Yields the last line if it has no line end."""
        yield from self.read()
        yield from self._splitter.finish()


class JobOutput:
    """The output of the launcher within a Slurm job, read from its files.

    Attributes:
      failure: the task that made the job fail; `None` before.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = {name: GrowingFile(path) for name, path in files.items()}
        self._last_lines: dict[Task, deque[str]] = {}
        self.failure: Failure | None = None

    def last_lines(self, task: Task) -> list[str]:
        return list(self._last_lines.get(task, ()))

    def show(self, watcher: Watcher, *, last: bool = False) -> None:
        """Passes new output to a watcher; `last`: the files are complete."""
        for stream, file in self._files.items():
            for line in file.finish() if last else file.read():
                match read_line(line):
                    case TaskLine(task, text):
                        self._last_lines.setdefault(task, deque(maxlen=watcher.keep_lines)).append(text)
                        watcher.line(task, stream, text)
                    case Failure() as failure:
                        self.failure = failure
                    case Note(text):
                        watcher.report(text)
