"""The output of `trainband run`: the tasks' lines, the live picture, and the failure that ended the job."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Protocol, TextIO

from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.runtime.formatting import CONTINUED, LINE_PREFIX, WARNING_PREFIX, printable

_NOISE = re.compile(
    r"(?!\d*$)(\[Gloo\] Rank |\d+| is connected to | peer ranks\. |Expected number of connected peer ranks is : )+"
)
"""Output of XLA's CPU collectives as they connect: several threads print it at once, so it arrives in pieces."""
_EXCEPTION = re.compile(r"([a-z_]\w*\.)*[A-Z]\w*(: .*)?")
"""The line of a traceback that names the exception."""
_NOTICE = ("--------------------", "For simplicity, JAX has removed its internal frames ")
"""Beginnings of the two lines that JAX adds below an exception."""
_RESET = "\x1b[0m"
_DIM = "\x1b[2m"
# Not red, which is for errors, nor black, white and grey, which some terminals use as background.
_COLOURS = tuple(f"\x1b[{code}m" for code in (36, 33, 32, 35, 34, 96, 93, 92, 95, 94))


class Output(Protocol):
    """Destination of everything that `trainband run` shows, line by line. `report` is called from any thread."""

    def line(self, task: Task, text: str, stream: str = "stdout") -> None: ...

    def report(self, text: str) -> None:
        """Shows a message of the launcher, of one or more lines."""
        ...

    def watching(self, spec: ClusterSpec) -> AbstractContextManager[None]:
        """A context that stays open while the started tasks run."""
        ...


class StreamOutput:
    """Writes each line after its task's name: the tasks' stderr to stderr, their stdout to stdout.

    So `trainband run train.py >log` keeps what the script prints, as the script alone would. Every line is
    one write that is flushed at once, so that lines stay whole and the two streams keep their order.
    If stderr is a terminal, a live picture of the job appears below the lines while the tasks run.

    Args:
      tasks: all the tasks; a task's position determines its colour.
      stdout, stderr: where to write.
      environ: `NO_COLOR` in it, if not empty, turns colour off (https://no-color.org).
      quiet: leave out the live picture and trainband's messages in the tasks, except warnings.
    """

    def __init__(
        self, tasks: Sequence[Task], *, stdout: TextIO, stderr: TextIO, environ: Mapping[str, str], quiet: bool = False
    ) -> None:
        self._streams = {"stdout": stdout, "stderr": stderr}
        plain = bool(environ.get("NO_COLOR"))
        self._coloured = {name: not plain and stream.isatty() for name, stream in self._streams.items()}
        self._colours = {task: _COLOURS[place % len(_COLOURS)] for place, task in enumerate(tasks)}
        self._quiet = quiet
        self._live = not quiet and stderr.isatty() and environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self._above: Callable[[str], None] | None = None
        self._leaves_out: set[Task] = set()
        """The tasks whose last line on stderr was left out."""
        self._lock = threading.Lock()

    def line(self, task: Task, text: str, stream: str = "stdout") -> None:
        """Writes one line of a task."""
        if is_noise(text):
            return
        if self._quiet and stream == "stderr" and self._is_left_out(task, text):
            return
        if self._coloured[stream]:
            # The final reset is for tasks that colour their lines and do not reset the colour.
            text = f"{self._colours.get(task, '')}[{task}]{_RESET} {text}{_RESET}"
        else:
            text = f"[{task}] {text}"
        self._write(stream, text)

    def report(self, text: str) -> None:
        """Writes a message of the launcher to stderr."""
        self._write("stderr", f"{_DIM}{text}{_RESET}" if self._coloured["stderr"] and "\n" not in text else text)

    @contextmanager
    def watching(self, spec: ClusterSpec) -> Iterator[None]:
        """Shows the live picture if stderr is a terminal and the job has a ps."""
        if not (self._live and spec.ps):
            yield
            return
        from trainband.cli.panel import Panel  # imported late: the tasks do not wait for rich

        with Panel(str(spec.ps[0]), spec.address(spec.ps[0]), self._streams["stderr"]) as panel:
            self._above = panel.write
            try:
                yield
            finally:
                self._above = None

    def _is_left_out(self, task: Task, text: str) -> bool:
        """Whether this is (part of) a message of trainband in a task: `say_on_stderr` indents continuation lines."""
        goes_on = text.startswith(CONTINUED) and task in self._leaves_out
        if goes_on or (text.startswith(LINE_PREFIX) and not text.startswith(WARNING_PREFIX)):
            self._leaves_out.add(task)
            return True
        self._leaves_out.discard(task)
        return False

    def _write(self, name: str, text: str) -> None:
        stream = self._streams[name]
        encoding = stream.encoding or "utf-8"
        # A terminal that cannot show a character must not end the training.
        text = text.encode(encoding, errors="backslashreplace").decode(encoding) + "\n"
        if self._above is not None and stream.isatty():
            self._above(text)
        else:
            with self._lock:
                stream.write(text)
                stream.flush()


def is_noise(line: str) -> bool:
    """Whether a line is what XLA's collectives print as they connect."""
    return _NOISE.fullmatch(line) is not None


def describe_failure(task: Task, reason: str, last_lines: Sequence[str], *, width: int) -> str:
    """The final report of a failed task: its name, the reason, the exception, and its last lines.

    Args:
      width: of the frame, in characters.
    """
    title = f"── {task} failed: {printable(reason)} "
    if not last_lines:
        return "\n".join([f"{title}── it printed nothing ".ljust(width, "─"), "─" * width])
    last_lines = _without_notice(last_lines)
    counted = f"── its last {len(last_lines)} lines " if len(last_lines) > 1 else "── its last line "
    error = _exception(last_lines)
    head = [title + counted] if error is None else [title, f"│ {error}", counted]
    frame = [line if line.startswith("│") else line.ljust(width, "─") for line in head]
    return "\n".join([*frame, *(f"│ {line}" for line in last_lines), "─" * width])


def _exception(lines: Sequence[str]) -> str | None:
    """The line that names the exception of the last traceback in these lines; `None` without a traceback."""
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    for i in reversed(range(frames[0] + 1 if frames else len(lines), len(lines))):
        if lines[i - 1].startswith("  ") and _EXCEPTION.fullmatch(lines[i]):
            return lines[i]
    return None


def _without_notice(lines: Sequence[str]) -> list[str]:
    """The lines without JAX's notice below a traceback."""
    below = {i for i, pair in enumerate(pairwise(lines)) if all(map(str.startswith, pair, _NOTICE))}
    return [line for i, line in enumerate(lines) if i not in below and i - 1 not in below]
