"""`tf.logging`: lines on stderr with a letter for how grave they are."""

from __future__ import annotations

import logging as python_logging
import sys
from typing import Any

DEBUG, INFO, WARN, ERROR, FATAL = 10, 20, 30, 40, 50
_LETTERS = {DEBUG: "DEBUG", INFO: "INFO", WARN: "WARNING", ERROR: "ERROR", FATAL: "CRITICAL"}
_logger = python_logging.getLogger("tensorflow")
_level = WARN
_counts: dict[str, int] = {}


def set_verbosity(v: Any) -> None:
    """From now on only lines of at least this level."""
    global _level
    _level = v if isinstance(v, int) else int(getattr(python_logging, str(v).upper()))


def get_verbosity() -> int:
    """The level."""
    return _level


def log(level: int, msg: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG001
    """One line of a level."""
    if level >= _level:
        text = str(msg) % args if args else str(msg)
        print(f"{_LETTERS.get(level, level)}:tensorflow:{text}", file=sys.stderr)


def debug(msg: Any, *args: Any, **kwargs: Any) -> None:
    """A line for whoever looks for mistakes."""
    log(DEBUG, msg, *args, **kwargs)


def info(msg: Any, *args: Any, **kwargs: Any) -> None:
    """A line about how it goes."""
    log(INFO, msg, *args, **kwargs)


def warning(msg: Any, *args: Any, **kwargs: Any) -> None:
    """A line about what looks wrong."""
    log(WARN, msg, *args, **kwargs)


warn = warning


def error(msg: Any, *args: Any, **kwargs: Any) -> None:
    """A line about what went wrong."""
    log(ERROR, msg, *args, **kwargs)


def fatal(msg: Any, *args: Any, **kwargs: Any) -> None:
    """A line about what ends everything."""
    log(FATAL, msg, *args, **kwargs)


def log_every_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """A line, every n times."""
    count = _counts.get(str(msg), 0)
    _counts[str(msg)] = count + 1
    if count % n == 0:
        log(level, msg, *args)


def log_first_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """A line, the first n times."""
    count = _counts.get(str(msg), 0)
    _counts[str(msg)] = count + 1
    if count < n:
        log(level, msg, *args)


def log_if(level: int, msg: Any, condition: bool, *args: Any) -> None:
    """A line, if a condition holds."""
    if condition:
        log(level, msg, *args)


def vlog(level: int, msg: Any, *args: Any) -> None:
    """A line for whoever looks for mistakes."""
    del level
    log(DEBUG, msg, *args)


def flush() -> None:
    """Brings all lines out."""
    sys.stderr.flush()


def get_logger() -> python_logging.Logger:
    """Python's own logger of this name."""
    return _logger


TaskLevelStatusMessage = info
