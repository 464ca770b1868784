"""Signals as requests instead of interruptions."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

PREEMPTED = "SIGTERM asked this task to end"
INTERRUPTED = "Ctrl-C asked this task to end"

EXIT_CODES = {PREEMPTED: 128 + signal.SIGTERM, INTERRUPTED: 128 + signal.SIGINT}
"""By the request, the exit code that a shell reports for a program that its signal has ended."""

_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
_REQUESTS = {signal.SIGTERM: PREEMPTED, signal.SIGINT: INTERRUPTED}


ECHO_S = 2.0
"""Seconds within which a second SIGTERM is an echo of the first: where Slurm ends a job, it signals the tasks, the
launcher, which signals the tasks, and srun, which does, too. Measured there: three within 0.02 s."""


class AskedToEnd(SystemExit):
    """SIGTERM has come where nothing can be finished first; as text, it is the request."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODES[PREEMPTED])

    def __str__(self) -> str:
        return PREEMPTED


def request_to_end(reason: str) -> str:
    """The request of a signal in a reason to end, of this task or told of another; empty where it is another reason."""
    return next((request for request in EXIT_CODES if reason.endswith(request)), "")


def end_for(request: str) -> NoReturn:
    """Ends the program as its signal would have.

    Raises:
      SystemExit: with the signal's code.
      KeyboardInterrupt: for Ctrl-C where somebody types the program, who goes on typing.
    """
    if request == INTERRUPTED and hasattr(sys, "ps1"):
        raise KeyboardInterrupt
    raise SystemExit(EXIT_CODES[request])


@contextmanager
def on_request_to_end(note: Callable[[str], None], *, ctrl_c: bool = True) -> Iterator[None]:
    """Returns a context in which the first SIGTERM or Ctrl-C only calls `note`; a second one kills the process, but for
    the echo of a SIGTERM, see `ECHO_S`.

    It does nothing outside the main thread, nor to a signal that the program handles itself.

    Args:
      note: called with `PREEMPTED` or `INTERRUPTED` by a signal handler, between any two instructions of the main
        thread, so it must not take a lock.
      ctrl_c: whether Ctrl-C (SIGINT) is such a request, too.
    """
    numbers = [signal.SIGTERM, signal.SIGINT] if ctrl_c else [signal.SIGTERM]
    is_main = threading.current_thread() is threading.main_thread()
    taken = [number for number in numbers if is_main and signal.getsignal(number) == _DEFAULTS[number]]

    def handler(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        first_at = time.monotonic()

        def again(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
            if time.monotonic() - first_at >= ECHO_S:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        for one in taken:
            signal.signal(one, again if one == number == signal.SIGTERM else signal.SIG_DFL)
        note(_REQUESTS[signal.Signals(number)])

    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, _DEFAULTS[number])


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Returns a context in which the first SIGTERM raises `AskedToEnd`, as Ctrl-C raises `KeyboardInterrupt`.

    It does nothing outside the main thread, nor where the program handles SIGTERM itself.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise AskedToEnd

    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
