"""Errors that a restart would repeat, and their exit code, by which a launcher recognises them."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from trainband.errors import DataError, ModelError

INPUT_ERROR = 65
"""The exit code of a process that ends with such an error; `sysexits.h` calls it EX_DATAERR."""

_TRACES = "trainband.model.model"
"""The module that calls the user's functions while JAX traces them."""

_is_installed = False


def would_repeat(exc: BaseException) -> bool:
    """Whether the same script with the same input would end with this error again.

    These are `DataError`, `ModelError`, and type and value errors that the user's loss raises while it is traced, such
    as shape mismatches.
    """
    if isinstance(exc, (DataError, ModelError)):
        return True
    if not isinstance(exc, (TypeError, ValueError)):
        return False
    return any(frame.f_globals.get("__name__") == _TRACES for frame, _ in traceback.walk_tb(exc.__traceback__))


def exit_by_kind_of_error() -> None:
    """Makes this process exit with `INPUT_ERROR` after an error that a restart would repeat. Idempotent."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    before = sys.excepthook

    def hook(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
        before(kind, exc, trace)
        if would_repeat(exc) and not hasattr(sys, "ps1"):  # set in an interactive Python
            raise SystemExit(INPUT_ERROR)

    sys.excepthook = hook
