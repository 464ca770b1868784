"""SIGTERM as a request to end: the first one asks a task to finish its step and leave, the second one kills it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PREEMPTED = "SIGTERM asked this task to end"

SIGTERM_EXIT_CODE = 128 + signal.SIGTERM
"""The exit code that a shell reports for a program ended by SIGTERM."""

_KILLS = signal.SIG_DFL


@contextmanager
def on_sigterm(note: Callable[[], None]) -> Iterator[None]:
    """Returns a context in which the first SIGTERM only calls `note`; a second one kills the process.

    It does nothing outside the main thread, nor where the program handles SIGTERM itself.

    Args:
      note: called by a signal handler, between any two instructions of the main thread, so it must not take a lock.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != _KILLS:
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        signal.signal(signal.SIGTERM, _KILLS)
        note()

    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, _KILLS)
