"""Recordings: records this worker's steps when a ps orders it, with the clocks of all ps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from trainband.ps.worker.membership import Membership
from trainband.runtime.step_recording import ClockReading, StepRecorder, StepRecording
from trainband.wire.messages import recording as rec

READINGS = 8
"""Kept per ps clock: the quickest of these is the most exact, and clocks barely drift meanwhile."""


@dataclass(slots=True)
class _Ordered:
    ps: int
    order: rec.RecordingOrder
    recorder: StepRecorder


class Recordings:
    """Recorder of one order at a time. Each ps's heartbeat thread calls it."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._readings: dict[int, deque[ClockReading]] = {}
        self._lock = membership.runtime.lock()
        self._done = ""
        self._ordered: _Ordered | None = None

    def record_clock(self, ps: int, asked: float, clock: float, answered: float) -> None:
        """Notes a ps's clock and the times here before and after reading it, with every heartbeat."""
        self._readings.setdefault(ps, deque(maxlen=READINGS)).append(ClockReading(f"ps:{ps}", asked, clock, answered))

    def _known_clocks(self) -> tuple[ClockReading, ...]:
        return tuple(reading for of_ps in list(self._readings.values()) for reading in list(of_ps))

    def handle_order(self, ps: int, order: rec.RecordingOrder | None) -> rec.Recorded | None:
        """Starts what a ps orders; returns the result to send it once that is over."""
        if order is None and self._ordered is None:
            return None
        with self._lock:
            ordered, times = self._ordered, self._membership.times
            if ordered is None:
                is_new = order is not None and order.order != self._done and self._membership.task in order.workers
                if order is not None and is_new and times.recorder is None:
                    recorder = StepRecorder(order.steps, self._membership.runtime.clock)
                    self._ordered = _Ordered(ps, order, recorder)
                    times.recorder = recorder
                return None
            if ordered.ps != ps or not ordered.recorder.is_over:
                return None
            self._done, self._ordered = ordered.order.order, None
            if times.recorder is ordered.recorder:
                times.recorder = None
        recording = self.recording(ordered.recorder)
        return rec.Recorded(0, self._membership.incarnation, ordered.order.order, recording)

    def recording(self, recorder: StepRecorder) -> StepRecording:
        """Returns a recorder's notes with the known clock readings."""
        membership = self._membership
        return recorder.recording(membership.task, membership.runtime.host, membership.runtime.pid, self._known_clocks)
