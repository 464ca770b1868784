"""The output of `trainband --log-format json run`: one event a line on stderr."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TextIO

from trainband.cli.run_output import is_noise
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.runtime.formatting import LINE_PREFIX, WARNING_PREFIX, printable_json
from trainband.runtime.logs import CONSOLE, LEVELS, NOBODY, event

_NEEDED = ("time", "level", "logger", "message")


class JsonOutput:
    """Writes the launcher's messages and each line of the tasks' stderr as an event to stderr.

    An event that a task has written stays one; its `task` is set to the task that wrote it. Any other line becomes the
    message of an event of the logger `stderr`. A script's stdout stays text, after its task's name.

    Args:
      stdout, stderr: where to write.
      quiet: leave out trainband's messages in the tasks, except warnings.
      clock: seconds since 1970.
    """

    def __init__(
        self, *, stdout: TextIO, stderr: TextIO, quiet: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._quiet = quiet
        self._clock = clock

    def line(self, task: Task, text: str, stream: str = "stdout") -> None:
        if is_noise(text):
            return
        if stream != "stderr":
            _write(self._stdout, f"[{task}] {text}")
            return
        found = _event_in(text)
        if found is None:
            self._write_event("info", "stderr", text, str(task))
        elif not (self._quiet and found["logger"] == CONSOLE.name and found["level"] in ("debug", "info")):
            _write(self._stderr, printable_json(json.dumps(found | {"task": str(task)})))

    def report(self, text: str) -> None:
        """Writes a message of the launcher."""
        level = "warning" if text.startswith(WARNING_PREFIX) else "info"
        self._write_event(level, "trainband.launch", text.removeprefix(LINE_PREFIX), NOBODY)

    def watching(self, spec: ClusterSpec) -> AbstractContextManager[None]:  # noqa: ARG002 - events show no picture
        """Shows nothing else."""
        return nullcontext()

    def _write_event(self, level: str, logger: str, message: str, task: str) -> None:
        _write(self._stderr, event(when=self._clock(), level=level, logger=logger, message=message, task=task))


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding) + "\n")
    stream.flush()


def _event_in(line: str) -> dict[str, Any] | None:
    """The event in a line; `None` if it holds something else."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(found, dict) and all(isinstance(found.get(name), str) for name in _NEEDED)
    return found if is_event and found["level"] in LEVELS else None
