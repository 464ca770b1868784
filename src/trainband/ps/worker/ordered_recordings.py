"""OrderedRecordings: records steps of this worker as a ps orders it, and sends it the recording."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.ps.worker.clock_readings import ClockReadings
from trainband.ps.worker.membership import Membership
from trainband.runtime.step_recording import StepRecorder, StepRecording
from trainband.wire import recording as rec


@dataclass(slots=True)
class _Ordered:
    ps: int
    order: rec.RecordingOrder
    recorder: StepRecorder


class OrderedRecordings:
    """One order after the other. Each ps's heartbeats call it from a thread of their own.

    Args:
      membership: of this worker.
      readings: of the clocks of the ps.
    """

    def __init__(self, membership: Membership, readings: ClockReadings) -> None:
        self._membership = membership
        self._readings = readings
        self._lock = membership.runtime.lock()
        self._done = ""
        self._ordered: _Ordered | None = None

    def heard(self, ps: int, order: rec.RecordingOrder | None) -> rec.Recorded | None:
        """Begins what a ps orders; returns what is to be sent to it, once that is over."""
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
        """What a recorder has noted, with what is known of the clocks."""
        membership = self._membership
        return recorder.recording(
            membership.task, membership.runtime.host, membership.runtime.pid, self._readings.readings
        )
