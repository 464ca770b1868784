"""Coordinator: tells the threads of a script when to stop."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from trainband.compat.tf1.graphs.errors import OutOfRangeError
from trainband.compat.tf1.scripts import logging

_POLL_S = 0.05
"""How often `join` checks whether a thread has ended."""


class Coordinator:
    """Tells several threads when to stop, and keeps the first error of any.

    Args:
      clean_stop_exception_types: errors that end all threads as a plain request does; `OutOfRangeError` when left out.
    """

    def __init__(self, clean_stop_exception_types: Any = None) -> None:
        if clean_stop_exception_types is None:
            clean_stop_exception_types = (OutOfRangeError,)
        self._clean = tuple(clean_stop_exception_types)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._joined = False
        self._registered_threads: set[threading.Thread] = set()

    def request_stop(self, ex: Any = None) -> None:
        """Asks for a stop.

        Args:
          ex: what went wrong: an exception, or what `sys.exc_info()` returned.

        Raises:
          Exception: `ex`, if all threads have been joined: nobody else would see it.
        """
        error = self._error_of(ex)
        with self._lock:
            if self._joined and error is not None:
                raise error
            if not self._stop.is_set():
                if error is not None:
                    logging.info("Error reported to Coordinator: %s: %s", type(error).__name__, error)
                    self._error = error
                self._stop.set()

    def _error_of(self, ex: Any) -> BaseException | None:
        """The error to raise in `join`; none for a clean stop."""
        if isinstance(ex, tuple):
            ex = ex[1] if len(ex) == 3 and isinstance(ex[1], BaseException) else _no_error(ex)
        elif ex is not None and not isinstance(ex, BaseException):
            ex = _no_error(ex)
        return None if isinstance(ex, self._clean) else ex

    def should_stop(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.is_set()

    def clear_stop(self) -> None:
        """Withdraws the request."""
        with self._lock:
            self._joined = False
            self._error = None
            self._stop.clear()

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Waits for the request; returns whether there is one."""
        return self._stop.wait(timeout)

    def register_thread(self, thread: threading.Thread) -> None:
        """Adds a thread that `join` is to wait for."""
        with self._lock:
            self._registered_threads.add(thread)

    def join(
        self,
        threads: Sequence[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Waits until the registered threads and these have ended; after a request to stop, only so long.

        Raises:
          Exception: what was passed to `request_stop`.
          RuntimeError: a thread is still running.
        """
        with self._lock:
            every = self._registered_threads | set(threads or ())
        while any(thread.is_alive() for thread in every) and not self.wait_for_stop(_POLL_S):
            pass
        deadline = time.monotonic() + stop_grace_period_secs
        for thread in every:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = [thread.name for thread in every if thread.is_alive()]
        with self._lock:
            self._joined = True
            self._registered_threads = set()
            if self._error is not None:
                raise self._error
            if left:
                text = f"Coordinator stopped with threads still running: {' '.join(left)}"
                if not ignore_live_threads:
                    raise RuntimeError(text)
                logging.info(text)

    def raise_requested_exception(self) -> None:
        """Raises the exception that was passed, if any."""
        with self._lock:
            if self._error is not None:
                raise self._error

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Requests a stop if the body raises, and swallows the error: `join` raises it."""
        try:
            yield
        except BaseException:
            self.request_stop(sys.exc_info())

    @property
    def joined(self) -> bool:
        """Whether all threads have been waited for."""
        return self._joined


def _no_error(ex: Any) -> ValueError:
    return ValueError(f"ex must be an exception or what sys.exc_info() returned for one, not {ex!r}")
