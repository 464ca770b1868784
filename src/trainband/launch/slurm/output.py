"""What a launcher within Slurm's job has printed, as lines of its tasks again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainband.cluster.task import Task
from trainband.launch.output_lines import LineSplitter

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
    """A task that has made the job fail, and how."""

    task: Task
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence of the launcher's, of Slurm's or of the batch script's."""

    text: str


def read_line(line: str) -> TaskLine | Failure | Note | None:
    """What a line of the launcher's is; `None` for one of the frame that shows a failed task's last lines, which
    whoever reads this shows himself.
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

    It is opened anew for each reading, or NFS would go on showing what it showed first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._splitter = LineSplitter()

    def read(self) -> Iterator[str]:
        """The lines that have come."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                while data := file.read(_READ_BYTES):
                    self._at += len(data)
                    yield from self._splitter.feed(data)
        except FileNotFoundError:
            return

    def finish(self) -> Iterator[str]:
        """The last line, if it has no line end."""
        yield from self.read()
        yield from self._splitter.finish()
