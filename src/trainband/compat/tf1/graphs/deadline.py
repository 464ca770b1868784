"""Deadlines: how long a run may wait for what other threads put into queues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainband.compat.tf1.graphs.errors import DeadlineExceededError


class _Open(threading.local):
    end: float | None = None
    milliseconds = 0


_open = _Open()


@contextmanager
def within(milliseconds: int) -> Iterator[None]:
    """Limits what this thread waits for inside; 0 or less: it waits as long as it takes."""
    before = _open.end, _open.milliseconds
    _open.end = time.monotonic() + milliseconds / 1000 if milliseconds > 0 else None
    _open.milliseconds = milliseconds
    try:
        yield
    finally:
        _open.end, _open.milliseconds = before


def wait_for(changed: threading.Condition, until: Callable[[], bool], what: str) -> None:
    """Waits for a condition.

    Args:
      what: what waits, for the error.

    Raises:
      DeadlineExceededError: this thread's time is over.
    """
    left = None if _open.end is None else max(0.0, _open.end - time.monotonic())
    if not changed.wait_for(until, left):
        raise DeadlineExceededError(
            None,
            None,
            f"{what}: timed out after {_open.milliseconds} ms, by RunOptions.timeout_in_ms or "
            "ConfigProto.operation_timeout_in_ms",
        )
