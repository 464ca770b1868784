"""Ticker: the thread in which streams send keepalives and check their deadlines."""

from __future__ import annotations

import atexit
import threading
import time
from typing import Generic, Protocol, TypeVar

from trainband.runtime.limits import start_thread


class Ticked(Protocol):
    """A stream, or anything else with periodic work."""

    def tick(self, now: float) -> None:
        """Does the work that is due, without blocking."""
        ...


S = TypeVar("S", bound=Ticked)


class Ticker(Generic[S]):
    """The thread that ticks the streams of a connection or a listener. Starts when needed."""

    def __init__(self, name: str, interval_s: float) -> None:
        self._name = name
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._streams: set[S] = set()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, stream: S) -> None:
        """Ticks a stream until it is removed."""
        with self._lock:
            self._streams.add(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"trainband-ticker-{self._name}", daemon=True)
                # A thread that returns from C++ into a finished interpreter may abort the process.
                atexit.register(self.close)
                start_thread(self._thread)

    def remove(self, stream: S) -> None:
        """Stops ticking a stream."""
        with self._lock:
            self._streams.discard(stream)

    def streams(self) -> list[S]:
        """Returns the streams that are ticked now."""
        with self._lock:
            return list(self._streams)

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            for stream in self.streams():
                stream.tick(time.monotonic())

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        self._over.set()
        atexit.unregister(self.close)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._interval_s + 1.0)
