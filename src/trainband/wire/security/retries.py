"""Retries of a greeting.

A listener closes unauthenticated connections: after a time limit, which may be too short on a busy machine, and at
random when there are too many.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from trainband.errors import PeerError

_T = TypeVar("_T")


def retried(
    greet: Callable[[], _T],
    is_closed: Callable[[PeerError], bool],
    pauses_s: Sequence[float],
    deadline: float = math.inf,
) -> _T:
    """Calls `greet` until the listener does not close the connection, pausing in between; returns its result."""
    for pause_s in pauses_s:
        try:
            return greet()
        except PeerError as exc:
            if not is_closed(exc) or time.monotonic() + pause_s >= deadline:
                raise
        time.sleep(pause_s)
    return greet()
