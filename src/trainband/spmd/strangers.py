"""Strangers: a bounded number of callers that have not yet proved that they belong to the job."""

from __future__ import annotations

import contextlib
import random
import socket
import threading

MOST_STRANGERS = 64
"""Callers that are being asked for a proof at a time."""


class Strangers:
    """The connections of callers that are being asked for a proof. Thread-safe.

    If there is one too many, a random one is closed. If it were always the newest or the oldest, a caller that connects
    fast enough could keep the job's own workers out.

    Args:
      most: how many there may be.
      dice: picks the one to close.
    """

    def __init__(self, most: int = MOST_STRANGERS, dice: random.Random | None = None) -> None:
        self._most = most
        self._dice = dice or random.Random()
        self._lock = threading.Lock()
        self._asked: list[socket.socket] = []

    def add(self, caller: socket.socket) -> None:
        """Counts a caller. It, or another one, is disconnected if there are too many; a worker calls again."""
        with self._lock:
            self._asked.append(caller)
            if len(self._asked) <= self._most:
                return
            drawn = self._asked.pop(self._dice.randrange(len(self._asked)))
        with contextlib.suppress(OSError):  # it has just gone by itself
            drawn.shutdown(socket.SHUT_RDWR)  # wakes the thread that asks it, and that closes it

    def remove(self, caller: socket.socket) -> None:
        """Stops counting a caller that has been asked."""
        with self._lock, contextlib.suppress(ValueError):  # it was disconnected
            self._asked.remove(caller)
