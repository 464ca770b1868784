"""LogFollower: a thread that reads the log of one pod, across broken connections."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from trainband.errors import Unreachable
from trainband.launch.kubernetes.api import Api, ApiRefusal
from trainband.launch.kubernetes.pod_template import CONTAINER

_logger = logging.getLogger(__name__)

_AGAIN_S = 1.0
_MARGIN_S = 10
"""More than the difference between the clocks that measure a log's age here and there."""


class LogFollower:
    """Reads the log of a pod from its beginning to its end. The thread ends then, or with `close`.

    Args:
      put: called, in the thread, with each line.
    """

    def __init__(self, api: Api, pod: str, put: Callable[[str], None]) -> None:
        self._api = api
        self._pod = pod
        self._deliver = put
        self._ended = threading.Event()
        self._closing = threading.Event()
        self._response: Any = None
        self._last = ("", "")
        self._last_s = 0.0
        self._thread = threading.Thread(target=self._follow, name=f"log of {pod}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Marks the log as complete, because the container has ended."""
        self._ended.set()

    @property
    def done(self) -> bool:
        """Whether everything has been read."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        self._closing.set()
        self._ended.set()
        self._wake()
        self._thread.join(_AGAIN_S * 10)

    def _follow(self) -> None:
        while not self._closing.is_set():
            was_over = self._ended.is_set()
            try:
                since = math.ceil(time.monotonic() - self._last_s) + _MARGIN_S if self._last_s else None
                self._response = self._api.follow(self._pod, CONTAINER, since)
                for line in self._api.lines(self._response):
                    self._forward(line)
                if was_over:
                    return
            except ApiRefusal as exc:
                if exc.status == 404:
                    return  # the pod is gone, and its log with it
                # Otherwise its container is not up yet, or the API server is busy: retried below.
            except Unreachable as exc:  # the launcher reports it, because it polls the pods, too
                _logger.info("the log of %s breaks off: %s", self._pod, exc)
            except (OSError, ValueError, AttributeError):
                if not self._closing.is_set():  # else `close` has closed the connection
                    raise
            finally:
                if self._response is not None:
                    self._response.close()
                    self._response = None
            (self._closing if was_over else self._ended).wait(_AGAIN_S)

    def _forward(self, line: bytes) -> None:
        """Passes a line on, unless it was read before the connection broke."""
        stamp, _, text = line.decode(errors="replace").partition(" ")
        when = _sortable(stamp)
        if when <= self._last:
            return
        self._last, self._last_s = when, time.monotonic()
        self._deliver(text)

    def _wake(self) -> None:
        connection: Any = getattr(self._response, "connection", None) or getattr(self._response, "_connection", None)
        with contextlib.suppress(OSError, AttributeError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _sortable(stamp: str) -> tuple[str, str]:
    """Makes a Kubernetes time sortable; its fraction has as many digits as needed."""
    seconds, _, fraction = stamp.removesuffix("Z").partition(".")
    return seconds, fraction.ljust(9, "0")
