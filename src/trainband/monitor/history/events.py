"""EventLog: a training run's events until they are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from trainband.monitor.history.schema import EVENT, Row

MOST_EVENTS = 20_000
"""Events in one file. Later ones are counted; of them only the end is written."""


class EventLog:
    """Events as rows. Thread-safe.

    Args:
      wall: seconds since 1970.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._waiting: deque[Row] = deque(maxlen=1_000)
        self._written = 0

    def add(self, kind: str, text: str, global_step: int, value: float | None = None) -> None:
        """Adds an event that has just happened."""
        self._waiting.append(Row(self._wall(), global_step, EVENT + kind, value, text))

    def pop(self, global_step: int) -> list[Row]:
        """Returns the events to write now, without those beyond the limit."""
        events = [self._waiting.popleft() for _ in range(len(self._waiting))]
        room = max(0, MOST_EVENTS - self._written)
        self._written += len(events)
        if len(events) > room > 0:
            text = f"the events after the first {MOST_EVENTS:,} of this file are omitted"
            events[room - 1] = Row(self._wall(), global_step, EVENT + "limit", None, text)
        return events[:room]
