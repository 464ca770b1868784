"""The log: records of modules below the logger `trainband`, each with the task that it is about.

Nothing is printed unless a program configures Python's `logging` or a level is requested: then `log_to_stderr` prints
the records beside the console's lines, which are records of the logger `trainband.console`. As JSON, the log includes
these.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from trainband.runtime.formatting import printable, printable_json
from trainband.runtime.overrides import override

ROOT = logging.getLogger("trainband")
CONSOLE = logging.getLogger("trainband.console")
"""The logger of trainband's messages to people."""

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

NOBODY = "-"
EVENT_PREFIX = '{"time": '
"""Prefix of every JSON event."""
_FORMAT = "%(asctime)s.%(msecs)03d %(task)s %(levelname)s %(name)s: %(message)s"


def task_logger(module: str, task: str) -> logging.LoggerAdapter[logging.Logger]:
    """Returns a module's logger, whose records have the attribute `task`.

    Args:
      module: its `__name__`.
      task: such as `worker:1`.
    """
    return logging.LoggerAdapter(logging.getLogger(module), {"task": task})


class _PrintableFormatter(logging.Formatter):
    """Formatter that makes control characters visible, so that untrusted text cannot fake a line."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - a name of the logging library
        record.message = printable(record.message)
        return super().formatMessage(record)

    @override
    def formatException(self, ei: Any) -> str:  # noqa: N802 - a name of the logging library
        return printable(super().formatException(ei), newline="\n")


Position = Callable[[], Mapping[str, int]]
"""Returns where a job is: `global_step` and `term`, as far as known. Must take no lock: callers may hold any."""

_positions: list[Position] = []


def add_position(position: Position) -> Callable[[], None]:
    """Adds the job's position to JSON events; returns an idempotent function that undoes it.

    Args:
      position: of one part of this process; the latest of several counts.
    """
    _positions.append(position)

    def withdraw() -> None:
        if position in _positions:
            _positions.remove(position)

    return withdraw


def event(*, when: float, level: str, logger: str, message: str, task: str, **more: Any) -> str:
    """Returns one event as a line of ASCII JSON.

    Args:
      when: seconds since 1970.
      level: one of `LEVELS`.
      logger: its source, such as `trainband.console`.
      message: the text.
      task: its subject; left out if it is the default of `log_to_stderr`.
      more: further fields.
    """
    stamp = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fields = {"time": stamp, "level": level, "logger": logger, "message": message}
    return printable_json(json.dumps(fields | ({} if task == NOBODY else {"task": task}) | more))


class _JsonFormatter(logging.Formatter):
    """Makes each record one line of JSON; see `event`."""

    def __init__(self, task: str) -> None:
        super().__init__()
        self._task = task

    @override
    def format(self, record: logging.LogRecord) -> str:
        more: dict[str, Any] = dict(_positions[-1]()) if _positions else {}
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        return event(
            when=record.created,
            level=record.levelname.lower(),
            logger=record.name,
            message=record.getMessage(),
            task=str(getattr(record, "task", self._task)),
            **more,
        )


class LogHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic in its stubs alone
    """Handler that writes the log to stderr: as text without the console's lines, as JSON with them.

    Args:
      task: for records that name none.
      form: one of `FORMATS`.
    """

    def __init__(self, task: str = NOBODY, form: str = "text") -> None:
        super().__init__(sys.stderr)
        self.handles_console = form == "json"
        """Whether the records include messages to people."""
        if form == "json":
            self.setFormatter(_JsonFormatter(task))
        else:
            self.setFormatter(_PrintableFormatter(_FORMAT, "%Y-%m-%dT%H:%M:%S", defaults={"task": task}))
            self.addFilter(lambda record: record.name != CONSOLE.name)


def log_to_stderr(level: str, task: str = NOBODY, form: str = "text") -> None:
    """Prints records of at least this level to stderr, with the time and the task. A second call replaces the first.

    Args:
      level: one of `LEVELS`. Messages to people are printed at any level.
      task: of this process.
      form: one of `FORMATS`. As JSON, the exception that ends this process is a record, too.
    """
    for handler in [one for one in ROOT.handlers if isinstance(one, LogHandler)]:
        ROOT.removeHandler(handler)
    ROOT.addHandler(LogHandler(task, form))
    ROOT.setLevel(level.upper())
    ROOT.propagate = False  # absl, for example, gives the root logger a handler that would print everything again
    CONSOLE.setLevel(logging.INFO if form == "json" else logging.NOTSET)
    if form == "json" and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _log_exception


def _log_exception(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
    """Logs the traceback of the exception that ends a program as one record, without other lines."""
    if not issubclass(kind, Exception) or not any(_handles_console(handler) for handler in ROOT.handlers):
        sys.__excepthook__(kind, exc, trace)
        return
    ROOT.error("%s has ended this program: %s", kind.__name__, exc, exc_info=(kind, exc, trace))


def log_if_configured(text: str) -> bool:
    """Logs a line for people if the program has configured the logger `trainband`; returns whether it did."""
    level = logging.WARNING if text.startswith("WARNING") else logging.INFO
    if not (_is_configured() and CONSOLE.isEnabledFor(level)):
        return False
    CONSOLE.log(level, "%s", text)
    return True


def _is_configured() -> bool:
    """Whether the program shows trainband's records: with its own handler, or the root's, if it set a level."""
    handlers = (*ROOT.handlers, *CONSOLE.handlers)
    if any(
        not isinstance(handler, LogHandler | logging.NullHandler) or _handles_console(handler) for handler in handlers
    ):
        return True
    return ROOT.propagate and bool(ROOT.level or CONSOLE.level) and logging.getLogger().hasHandlers()


def _handles_console(handler: logging.Handler) -> bool:
    return isinstance(handler, LogHandler) and handler.handles_console
