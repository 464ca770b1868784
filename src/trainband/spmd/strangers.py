"""Strangers: a bounded number of callers that have not yet proved that they belong to the job."""

from __future__ import annotations

import contextlib
import random
import socket

from trainband.runtime import SYSTEM, Runtime
from trainband.spmd.sockets import Socket

MOST_STRANGERS = 64
"""Callers that are being asked for a proof at a time."""


class Strangers:
    """The connections of callers that are being asked for a proof. Thread-safe.

    If there is one too many, a random one is closed. If it were always the newest or the oldest, a caller that connects
    fast enough could keep the job's own workers out.

    Args:
      most: how many there may be.
      runtime: picks the one to close.
    """

    def __init__(self, most: int = MOST_STRANGERS, runtime: Runtime = SYSTEM) -> None:
        self._most = most
        self._dice = random.Random(runtime.token())
        self._lock = runtime.lock()
        self._asked: list[Socket] = []

    def add(self, caller: Socket) -> None:
        """Counts a caller. It, or another one, is disconnected if there are too many; a worker calls again."""
        with self._lock:
            self._asked.append(caller)
            if len(self._asked) <= self._most:
                return
            drawn = self._asked.pop(self._dice.randrange(len(self._asked)))
        with contextlib.suppress(OSError):  # it has just gone by itself
            drawn.shutdown(socket.SHUT_RDWR)  # wakes the thread that asks it, and that closes it

    def remove(self, caller: Socket) -> None:
        """Stops counting a caller that has been asked."""
        with self._lock, contextlib.suppress(ValueError):  # it was disconnected
            self._asked.remove(caller)
