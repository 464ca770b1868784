"""The line of the script that is being run, for error messages."""

from __future__ import annotations

import inspect
from pathlib import Path

_OURS = str(Path(__file__).resolve().parents[2])


def user_line() -> str:
    """`file:line` of the script's line that is being run."""
    frame = inspect.currentframe()
    last = "?"
    while frame is not None:
        name = frame.f_code.co_filename
        if not (name.startswith((_OURS, "<frozen")) or name.endswith(("contextlib.py", "functools.py", "inspect.py"))):
            return f"{name}:{frame.f_lineno}"
        last, frame = f"{name}:{frame.f_lineno}", frame.f_back
    return last
