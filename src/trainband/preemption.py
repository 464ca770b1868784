"""SIGTERM, by which whoever started a task asks it to end: a first one is a request, a second one kills."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PREEMPTED = "SIGTERM asked this task to end"

EXIT_CODE = 128 + signal.SIGTERM
"""What a shell gives for a program that SIGTERM has ended."""

_KILLS = signal.SIG_DFL


@contextmanager
def noted(note: Callable[[], None]) -> Iterator[None]:
    """Within, the first SIGTERM calls `note`, and no more; a second one kills.

    Outside the main thread, and where the program has its own way with SIGTERM, this does nothing.

    Args:
      note: called by a signal handler, between any two instructions of the main thread: it must not take a lock.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != _KILLS:
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the form of a handler
        signal.signal(signal.SIGTERM, _KILLS)
        note()

    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, _KILLS)
