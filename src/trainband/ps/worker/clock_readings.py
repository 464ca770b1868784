"""ClockReadings: what this worker knows of the clocks of the ps."""

from __future__ import annotations

from collections import deque

from trainband.runtime.step_recording import ClockReading

KEPT = 8
"""Of each ps: the quickest of so many says most, and clocks hardly drift while they come."""


class ClockReadings:
    """The last readings of each ps, one with every heartbeat. Each ps has a thread that notes them."""

    def __init__(self) -> None:
        self._readings: dict[int, deque[ClockReading]] = {}

    def note(self, ps: int, asked: float, clock: float, answered: float) -> None:
        """Notes what the clock of a ps has shown, between two moments of this worker's."""
        self._readings.setdefault(ps, deque(maxlen=KEPT)).append(ClockReading(f"ps:{ps}", asked, clock, answered))

    def readings(self) -> tuple[ClockReading, ...]:
        """All of them."""
        return tuple(reading for of_ps in list(self._readings.values()) for reading in list(of_ps))
