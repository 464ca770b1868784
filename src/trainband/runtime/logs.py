"""The log: records of modules below the logger `trainband`, each with the task that it is about.

Nothing is printed of it unless a program configures Python's `logging`, or somebody asks for a level: then
`log_to_stderr` prints it beside the console's words, which are records of the logger `trainband.console`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from trainband.runtime.formatting import printable
from trainband.runtime.overrides import override

ROOT = logging.getLogger("trainband")
CONSOLE = logging.getLogger("trainband.console")
"""The logger of what trainband says to people."""

LEVELS = ("debug", "info", "warning", "error")

NOBODY = "-"
_FORMAT = "%(asctime)s.%(msecs)03d %(task)s %(levelname)s %(name)s: %(message)s"


def task_logger(module: str, task: str) -> logging.LoggerAdapter[logging.Logger]:
    """A module's logger, whose records have the attribute `task`.

    Args:
      module: its `__name__`.
      task: such as `worker:1`.
    """
    return logging.LoggerAdapter(logging.getLogger(module), {"task": task})


class _PrintableFormatter(logging.Formatter):
    """Control characters in messages and tracebacks become visible; what others wrote makes no line of its own."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - a name of the logging library
        record.message = printable(record.message)
        return super().formatMessage(record)

    @override
    def formatException(self, ei: Any) -> str:  # noqa: N802 - a name of the logging library
        return printable(super().formatException(ei), newline="\n")


class LogHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic in its stubs alone
    """Writes the log to stderr, without what the console prints anyway.

    Args:
      task: stands in records that name none.
    """

    def __init__(self, task: str = NOBODY) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_PrintableFormatter(_FORMAT, "%Y-%m-%dT%H:%M:%S", defaults={"task": task}))
        self.addFilter(lambda record: record.name != CONSOLE.name)


def log_to_stderr(level: str, task: str = NOBODY) -> None:
    """Prints records of at least this level to stderr, with the time and the task. A second call replaces the first.

    Args:
      level: one of `LEVELS`.
      task: of this process.
    """
    for handler in [one for one in ROOT.handlers if isinstance(one, LogHandler)]:
        ROOT.removeHandler(handler)
    ROOT.addHandler(LogHandler(task))
    ROOT.setLevel(level.upper())
    ROOT.propagate = False  # absl, for one, gives the root logger a handler that would print everything again


def hand_to_program(text: str) -> bool:
    """Makes a line for people a record, where the program has configured the logger `trainband`; returns whether."""
    level = logging.WARNING if text.startswith("WARNING") else logging.INFO
    if not (_is_configured() and CONSOLE.isEnabledFor(level)):
        return False
    CONSOLE.log(level, "%s", text)
    return True


def _is_configured() -> bool:
    """Whether the program shows our records: by a handler of its own, or by the root's, for which it set a level."""
    handlers = (*ROOT.handlers, *CONSOLE.handlers)
    if any(not isinstance(handler, LogHandler | logging.NullHandler) for handler in handlers):
        return True
    return ROOT.propagate and bool(ROOT.level or CONSOLE.level) and logging.getLogger().hasHandlers()
