"""Signals as requests instead of interruptions."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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


@contextmanager
def signal_pipe(numbers: Sequence[int]) -> Iterator[int | None]:
    """Returns a context in which signals to this process do nothing but write their numbers, a byte each, to a pipe.

    Signals that the process ignores (`nohup`) stay ignored, and those with a handler set by C code keep it, because
    Python could not restore it. The context's value is the reading end of the pipe; it is `None` outside the main
    thread, which alone receives signals in Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def forward(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        with suppress(BlockingIOError):  # 65536 unread signals say enough
            os.write(writer, bytes([number]))

    previous = {number: signal.getsignal(number) for number in numbers}
    taken = [number for number, handler in previous.items() if handler not in (signal.SIG_IGN, None)]
    try:
        for number in taken:
            signal.signal(number, forward)
        yield reader
    finally:
        for number in taken:
            signal.signal(number, previous[number])
        os.close(reader)
        os.close(writer)
