"""What a test leaves behind: threads, and sockets that nobody has closed, such as those of an event loop."""

from __future__ import annotations

import socket
import sys
import threading
import time
import traceback
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

Left = ReferenceType[threading.Thread] | ReferenceType[socket.socket]

_DEPTH = 12
"""Of the stacks that are shown."""

_LASTING = "/ps/program/check/checker_process.py", "/tests/fork_server.py"
"""Open the sockets to processes that serve all tests, and end with this one."""

_opened: WeakKeyDictionary[socket.socket, traceback.StackSummary] = WeakKeyDictionary()
_open = socket.socket.__init__


def _record(self: socket.socket, *args: Any, **kwargs: Any) -> None:
    _open(self, *args, **kwargs)
    frames = traceback.walk_stack(sys._getframe(1))  # noqa: SLF001 - an event loop opens its sockets by itself
    _opened[self] = traceback.StackSummary.extract(frames, limit=_DEPTH, lookup_lines=False)


def watch_sockets() -> None:
    """Records from now on where each socket is opened."""
    socket.socket.__init__ = _record  # type: ignore[method-assign]


def open_now() -> set[Left]:
    """Returns the threads that run and the sockets that are open.

    A socket that is out of use and waits for the garbage collector counts as open. Threads are those that Python
    started: gRPC's own show up as dummies and stay for as long as gRPC likes.
    """
    threads = {
        ref(thread)
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)  # noqa: SLF001 - there is no public way
    }
    return threads | {one for one in _opened.keyrefs() if (opened := one()) is not None and _counts(opened)}


def _counts(opened: socket.socket) -> bool:
    return opened.fileno() >= 0 and not any(frame.filename.endswith(_LASTING) for frame in _opened[opened])


def since(before: set[Left], within_s: float) -> list[str]:
    """Returns what is there and was not before, unless it goes within this time."""
    until = time.monotonic() + within_s
    while (left := open_now() - before) and time.monotonic() < until:
        time.sleep(0.005)
    return sorted(_described(one) for reference in left if (one := reference()) is not None)


def _described(left: threading.Thread | socket.socket) -> str:
    if isinstance(left, threading.Thread):
        return f"thread {left.name}"
    return f"{left!r}, opened at\n{''.join(reversed(_opened[left].format()))}"
