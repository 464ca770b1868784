"""Interrupts: a queue of signals to the launcher and of equivalent requests from other threads."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
from collections.abc import Iterator

from trainband.runtime.signals import SignalPipe, signal_pipe

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A queue of signal numbers that end a job."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._writer: int | None = writer
        self._signals: SignalPipe | None = None
        self._ready = select.poll()
        self._ready.register(self._reader, select.POLLIN)
        self._selector: selectors.BaseSelector | None = None

    def register(self, selector: selectors.BaseSelector) -> None:
        """Makes interrupts wake a selector, too. Their keys have no data."""
        self._selector = selector
        selector.register(self._reader, selectors.EVENT_READ, None)

    def send(self, number: int) -> None:
        """Adds one, unless closed. Any thread may call it."""
        if self._writer is not None:
            with contextlib.suppress(BlockingIOError):  # 65536 unread signals are enough
                os.write(self._writer, bytes([number]))

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Adds SIGINT, SIGTERM and SIGHUP to this process within the context, if in the main thread."""
        with signal_pipe(_SIGNALS) as signals:
            if signals is None:
                yield
                return
            self._signals = signals
            self._ready.register(signals, select.POLLIN)
            if self._selector is not None:
                self._selector.register(signals, selectors.EVENT_READ, None)
            try:
                yield
            finally:
                self._read_signals()
                self._signals = None
                self._ready.unregister(signals)
                if self._selector is not None:
                    self._selector.unregister(signals)

    def has_come(self) -> bool:
        """Whether one is pending."""
        self._read_signals()
        return any(reader == self._reader for reader, _ in self._ready.poll(0))

    def read(self, timeout_s: float = 0.0) -> list[int]:
        """Returns the pending ones; waits for the first, or for a signal that is not added."""
        self._ready.poll(timeout_s * 1000)
        return list(os.read(self._reader, 64)) if self.has_come() else []

    def read_one(self) -> int:
        """Returns the next pending one; 0 without one."""
        return os.read(self._reader, 1)[0] if self.has_come() else 0

    def _read_signals(self) -> None:
        """Adds the signals that have arrived."""
        if self._signals is not None:
            for number in self._signals.read():
                self.send(number)

    def close(self) -> None:
        """Frees the pipe. Idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            os.close(self._reader)
            os.close(writer)
