"""Simulated time: what happens when, in an order that depends on nothing but the seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from greenlet import getcurrent

Action = Callable[[], None]


class Scheduler:
    """Runs actions in the order of their simulated times, and those of one time in the order of their planning.

    The greenlet that runs it is the hub: simulated threads switch to it when they wait.
    """

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the beginning."""
        self.count = 0
        """Of the actions that were planned."""
        self.hub = getcurrent()
        self._heap: list[tuple[float, int, Action]] = []

    def at(self, time_s: float, action: Action) -> None:
        """Plans an action for a time; one that is over means now."""
        self.count += 1
        heapq.heappush(self._heap, (max(time_s, self.now), self.count, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Plans an action for so many seconds from now."""
        self.count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self.count, action))

    def run(self, until_s: float, ended: Callable[[], bool]) -> None:
        """Lets time pass until `ended` says so, or until this time."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            if ended():
                return
            self.now, _, action = heapq.heappop(heap)
            action()
        if not ended():
            self.now = until_s
