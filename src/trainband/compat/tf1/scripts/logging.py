"""`tf.logging`: Python's logger `tensorflow`, whose lines go to stderr with their level."""

from __future__ import annotations

import logging as python_logging
import sys
from typing import Any

from trainband.runtime.overrides import override

DEBUG, INFO, WARN, ERROR, FATAL = 10, 20, 30, 40, 50
_counts: dict[str, int] = {}


class _Stderr(python_logging.Handler):
    """Prints to what `sys.stderr` is at the time."""

    @override
    def emit(self, record: python_logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def get_logger() -> python_logging.Logger:
    """Python's logger, to which scripts may add handlers."""
    logger = python_logging.getLogger("tensorflow")
    if not any(isinstance(one, _Stderr) for one in logger.handlers):
        handler = _Stderr()
        handler.setFormatter(python_logging.Formatter(python_logging.BASIC_FORMAT))
        logger.addHandler(handler)
        if logger.level == python_logging.NOTSET:
            logger.setLevel(WARN)
    return logger


def set_verbosity(v: Any) -> None:
    """Print only lines of at least this level from now on."""
    get_logger().setLevel(v if isinstance(v, int) else str(v).upper())


def get_verbosity() -> int:
    """The level."""
    return get_logger().getEffectiveLevel()


def log(level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
    """Print a line of a level."""
    get_logger().log(level, msg, *args, **kwargs)


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
    """Print a line of a level."""
    log(level, msg, *args)


def flush() -> None:
    """Flush stderr."""
    sys.stderr.flush()


TaskLevelStatusMessage = info
