"""Coordinator and queue runners. There are no queues, so these only track when to stop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from trainband.compat.tf1.graphs.errors import OutOfRangeError


class Coordinator:
    """Tells several threads when to stop."""

    def __init__(self, clean_stop_exception_types: Any = None) -> None:
        self._clean = tuple(clean_stop_exception_types or (OutOfRangeError,))
        self._stop = threading.Event()
        self._error: BaseException | None = None

    def request_stop(self, ex: Any = None) -> None:
        """Asks for a stop, with the exception if something went wrong."""
        if isinstance(ex, BaseException) and not isinstance(ex, self._clean) and not self._stop.is_set():
            self._error = ex
        self._stop.set()

    def should_stop(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.is_set()

    def clear_stop(self) -> None:
        """Withdraws the request."""
        self._stop.clear()
        self._error = None

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Waits for the request."""
        return self._stop.wait(timeout)

    def join(
        self,
        threads: Sequence[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,  # noqa: ARG002
    ) -> None:
        """Waits for threads to end, and raises the exception that was passed, if any."""
        for thread in threads or ():
            thread.join(stop_grace_period_secs)
        if self._error is not None:
            raise self._error

    def raise_requested_exception(self) -> None:
        """Raises the exception that was passed, if any."""
        if self._error is not None:
            raise self._error

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Requests a stop if the body raises."""
        try:
            yield
        except Exception as exc:
            self.request_stop(exc)

    @property
    def joined(self) -> bool:
        """Whether it has stopped."""
        return self._stop.is_set()


class QueueRunner:
    """Runs nothing: there are no queues."""

    def create_threads(self, sess: Any, coord: Any = None, daemon: bool = False, start: bool = False) -> list[Any]:
        """None."""
        del sess, coord, daemon, start
        return []


def start_queue_runners(
    sess: Any = None, coord: Any = None, daemon: bool = True, start: bool = True, collection: Any = None
) -> list[Any]:
    """None: there are no queues."""
    del sess, coord, daemon, start, collection
    return []


def add_queue_runner(qr: Any, collection: Any = None) -> None:
    """Does nothing."""
    del qr, collection
