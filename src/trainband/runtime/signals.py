"""Signals as requests instead of interruptions."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

PREEMPTED = "SIGTERM asked this task to end"
INTERRUPTED = "Ctrl-C asked this task to end"

EXIT_CODES = {PREEMPTED: 128 + signal.SIGTERM, INTERRUPTED: 128 + signal.SIGINT}
"""By request, the exit code that a shell reports for a program that its signal ended."""

_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
_REQUESTS = {signal.SIGTERM: PREEMPTED, signal.SIGINT: INTERRUPTED}


ECHO_S = 2.0
"""Seconds within which a second SIGTERM is an echo of the first: when Slurm ends a job, it signals the tasks, and the
launcher and srun, which both signal the tasks, too. Measured there: three within 0.02 s."""


class AskedToEnd(SystemExit):
    """SIGTERM arrived while there is nothing to finish first; its text is the request."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODES[PREEMPTED])

    def __str__(self) -> str:
        return PREEMPTED


def request_to_end(reason: str) -> str:
    """Returns the signal's request in a reason to end, of this or another task; empty for other reasons."""
    return next((request for request in EXIT_CODES if reason.endswith(request)), "")


def end_for(request: str) -> NoReturn:
    """Ends the program as its signal would have.

    Raises:
      SystemExit: with the signal's code.
      KeyboardInterrupt: for Ctrl-C in an interactive session, which continues.
    """
    if request == INTERRUPTED and hasattr(sys, "ps1"):
        raise KeyboardInterrupt
    raise SystemExit(EXIT_CODES[request])


@contextmanager
def on_request_to_end(note: Callable[[str], None], *, ctrl_c: bool = True) -> Iterator[None]:
    """Returns a context in which the first SIGTERM or Ctrl-C only calls `note`; a second one kills the process, except
    for the echo of a SIGTERM, see `ECHO_S`.

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

    It does nothing outside the main thread, or if the program handles SIGTERM itself.
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


class SignalPipe:
    """The numbers of the signals that this process has received.

    Args:
      reader: where the interpreter writes the number of every signal that has a Python handler.
      numbers: of the signals to read here.
      others: the descriptor that gets the numbers of all others; -1 for none.
    """

    def __init__(self, reader: int, numbers: Collection[int], others: int) -> None:
        self._reader = reader
        self._numbers = frozenset(numbers)
        self._others = others

    def fileno(self) -> int:
        """Readable once any signal has come, even one that is not read here."""
        return self._reader

    def read(self) -> list[int]:
        """The signals that have come since the last call. Never waits."""
        try:
            found = os.read(self._reader, 65536)
        except BlockingIOError:
            return []
        others = bytes(number for number in found if number not in self._numbers)
        if others and self._others >= 0:
            with suppress(OSError):  # it is full or already closed
                os.write(self._others, others)
        return [number for number in found if number in self._numbers]


@contextmanager
def signal_pipe(numbers: Sequence[int]) -> Iterator[SignalPipe | None]:
    """Returns a context in which signals to this process only wake threads that wait for its value.

    Signals that the process ignores (`nohup`) stay ignored, and those with a handler set by C code keep it, because
    Python could not restore it. The context's value is `None` outside the main thread, which alone receives signals in
    Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    previous = {number: signal.getsignal(number) for number in numbers}
    taken = [number for number, handler in previous.items() if handler not in (signal.SIG_IGN, None)]
    # A Python handler does not write to the pipe: it would run between two instructions of the main thread, so a signal
    # just before that thread waits in the kernel, or to another thread, would not wake it.
    others = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    pipe = SignalPipe(reader, taken, others)
    try:
        for number in taken:
            signal.signal(number, _ignore)
        yield pipe
    finally:
        for number in taken:
            signal.signal(number, previous[number])
        signal.set_wakeup_fd(others)
        pipe.read()
        os.close(reader)
        os.close(writer)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Handles a signal that the pipe reports. `SIG_IGN` instead would keep it from the pipe."""
