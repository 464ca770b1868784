"""RecordingOrders: orders to record steps, and the recordings."""

from __future__ import annotations

from msgspec.structs import replace

from trainband.errors import Refused
from trainband.ps.service.job_membership import JobMembership
from trainband.ps.task_state import TaskState
from trainband.runtime.step_recording import LONGEST_S, StepRecording
from trainband.wire.limits import LIMITS
from trainband.wire.messages import recording as rec


class RecordingOrders:
    """One order at a time, sent to workers in heartbeat replies. Called under the lock."""

    def __init__(self, task: TaskState, membership: JobMembership) -> None:
        self._task = task
        self._membership = membership
        self._order: rec.RecordingOrder | None = None
        self._ordered_at = 0.0
        self._recordings: dict[str, StepRecording] = {}

    def order(self, steps: int) -> rec.RecordingOrder:
        """Orders the first `LIMITS.recorded_workers` workers to record their next steps.

        Returns the current order while one is under way.

        Raises:
          Refused: no worker is training.
        """
        if self._order is not None and self.wanted() is not None:
            return self._order
        at_work = sorted(self._membership.members.at_work(), key=lambda member: member.number)
        workers = tuple(member.task for member in at_work[: LIMITS.recorded_workers])
        if not workers:
            raise Refused(f"no worker is training at {self._task.name}, so there are no steps to record.")
        self._order = rec.RecordingOrder(self._task.runtime.token(), steps, workers)
        self._ordered_at = self._task.clock()
        self._recordings = {}
        return self._order

    def wanted(self) -> rec.RecordingOrder | None:
        """Returns the order while a worker at work has yet to send."""
        order = self._order
        if order is None or self._task.clock() - self._ordered_at > LONGEST_S:
            return None
        at_work = {member.task for member in self._membership.members.at_work()}
        return order if at_work.intersection(order.workers) - self._recordings.keys() else None

    def store(self, task: str, order: str, recording: StepRecording) -> None:
        """Keeps a worker's recording unless it belongs to an older order."""
        if self._order is not None and order == self._order.order and task in self._order.workers:
            self._recordings[task] = replace(recording, task=task)

    def recordings(self) -> rec.Recordings:
        """Returns all so far."""
        return rec.Recordings(self._order, tuple(self._recordings.values()), self.wanted() is None)
