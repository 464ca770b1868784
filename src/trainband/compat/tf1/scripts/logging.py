"""`tf.logging`: lines on stderr, with their level."""

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
    """Print only lines of at least this level from now on."""
    global _level
    _level = v if isinstance(v, int) else int(getattr(python_logging, str(v).upper()))


def get_verbosity() -> int:
    """The level."""
    return _level


def log(level: int, msg: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG001
    """Print a line of a level."""
    if level >= _level:
        text = str(msg) % args if args else str(msg)
        print(f"{_LETTERS.get(level, level)}:tensorflow:{text}", file=sys.stderr)


def debug(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Print a line of level DEBUG."""
    log(DEBUG, msg, *args, **kwargs)


def info(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Print a line of level INFO."""
    log(INFO, msg, *args, **kwargs)


def warning(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Print a line of level WARN."""
    log(WARN, msg, *args, **kwargs)


warn = warning


def error(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Print a line of level ERROR."""
    log(ERROR, msg, *args, **kwargs)


def fatal(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Print a line of level FATAL."""
    log(FATAL, msg, *args, **kwargs)


def log_every_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """Print a line on every n-th call."""
    count = _counts.get(str(msg), 0)
    _counts[str(msg)] = count + 1
    if count % n == 0:
        log(level, msg, *args)


def log_first_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """Print a line on the first n calls."""
    count = _counts.get(str(msg), 0)
    _counts[str(msg)] = count + 1
    if count < n:
        log(level, msg, *args)


def log_if(level: int, msg: Any, condition: bool, *args: Any) -> None:
    """Print a line if a condition holds."""
    if condition:
        log(level, msg, *args)


def vlog(level: int, msg: Any, *args: Any) -> None:
    """Print a line of level DEBUG."""
    del level
    log(DEBUG, msg, *args)


def flush() -> None:
    """Flush stderr."""
    sys.stderr.flush()


def get_logger() -> python_logging.Logger:
    """Python's own logger of this name."""
    return _logger


TaskLevelStatusMessage = info
