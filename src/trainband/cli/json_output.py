"""What `trainband --log-format json run` shows of the tasks: one event a line on stderr."""

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
    """Writes each line that tasks have on stderr, and what the launcher says, as an event to stderr.

    What a task has written as an event stays one, with the task that it came from in it, whatever it says itself. Any
    other line becomes the message of an event of the logger `stderr`. What scripts print on stdout stays text, behind
    its task's name: it is theirs.

    Args:
      stdout, stderr: where to write.
      quiet: leave out what trainband says in the tasks, but for its warnings.
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
        """Writes one line of a task."""
        if is_noise(text):
            return
        if stream != "stderr":
            _write(self._stdout, f"[{task}] {text}")
            return
        found = _event_in(text)
        if found is None:
            self._say("info", "stderr", text, str(task))
        elif not (self._quiet and found["logger"] == CONSOLE.name and found["level"] in ("debug", "info")):
            _write(self._stderr, printable_json(json.dumps(found | {"task": str(task)})))

    def note(self, text: str) -> None:
        """Writes the launcher's own words."""
        level = "warning" if text.startswith(WARNING_PREFIX) else "info"
        self._say(level, "trainband.launch", text.removeprefix(LINE_PREFIX), NOBODY)

    def watching(self, spec: ClusterSpec) -> AbstractContextManager[None]:  # noqa: ARG002 - events are no picture
        """Shows nothing else."""
        return nullcontext()

    def _say(self, level: str, logger: str, message: str, task: str) -> None:
        _write(self._stderr, event(when=self._clock(), level=level, logger=logger, message=message, task=task))


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding) + "\n")
    stream.flush()


def _event_in(line: str) -> dict[str, Any] | None:
    """The event that a line is; `None` where it is something else."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(found, dict) and all(isinstance(found.get(name), str) for name in _NEEDED)
    return found if is_event and found["level"] in LEVELS else None
