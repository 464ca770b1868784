"""The thread that has streams give signs of life."""

from __future__ import annotations

import atexit
import threading
import time
from typing import Generic, Protocol, TypeVar

from ..runtime.limits import start_thread


class Beating(Protocol):
    """A stream that gives signs of life."""

    def tick(self, now: float) -> None:
        """Gives one if it is due, without a wait."""
        ...


S = TypeVar("S", bound=Beating)


class Pulse(Generic[S]):
    """The thread that sends the signs of life of a connection's or a listener's streams. Starts when needed."""

    def __init__(self, name: str, interval_s: float) -> None:
        self._name = name
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._streams: set[S] = set()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, stream: S) -> None:
        """Looks after a stream until it is removed."""
        with self._lock:
            self._streams.add(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"trainband-pulse-{self._name}", daemon=True)
                # A thread that comes back from C++ into an interpreter that has ended may abort the process.
                atexit.register(self.close)
                start_thread(self._thread)

    def remove(self, stream: S) -> None:
        """Looks after it no longer."""
        with self._lock:
            self._streams.discard(stream)

    def streams(self) -> list[S]:
        """Those that are looked after now."""
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
