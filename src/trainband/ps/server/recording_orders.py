"""RecordingOrders: orders to record steps, and what the workers send in."""

from __future__ import annotations

from msgspec.structs import replace

from trainband.errors import Refused
from trainband.ps.server.job_membership import JobMembership
from trainband.ps.server.task_state import TaskState
from trainband.runtime.step_recording import LONGEST_S, StepRecording
from trainband.wire import recording as rec
from trainband.wire.limits import LIMITS


class RecordingOrders:
    """One order at a time, which the workers learn with their heartbeats. Called under the lock.

    Args:
      task: what all parts of this ps share.
      membership: who is in the job.
    """

    def __init__(self, task: TaskState, membership: JobMembership) -> None:
        self._task = task
        self._membership = membership
        self._order: rec.RecordingOrder | None = None
        self._ordered_at = 0.0
        self._recordings: dict[str, StepRecording] = {}

    def order(self, steps: int) -> rec.RecordingOrder:
        """Has the next steps of the workers recorded; of the first ones, where there are many.

        An order that is under way is the answer to whoever comes meanwhile.

        Raises:
          Refused: nobody trains.
        """
        if self._order is not None and self.wanted() is not None:
            return self._order
        at_work = sorted(self._membership.members.at_work(), key=lambda member: member.number)
        workers = tuple(member.task for member in at_work[: LIMITS.recorded_workers])
        if not workers:
            raise Refused(f"no worker trains at {self._task.name} now, so there are no steps to record.")
        self._order = rec.RecordingOrder(self._task.runtime.token(), steps, workers)
        self._ordered_at = self._task.clock()
        self._recordings = {}
        return self._order

    def wanted(self) -> rec.RecordingOrder | None:
        """The order, while some worker that is still there has sent nothing."""
        order = self._order
        if order is None or self._task.clock() - self._ordered_at > LONGEST_S:
            return None
        at_work = {member.task for member in self._membership.members.at_work()}
        return order if at_work.intersection(order.workers) - self._recordings.keys() else None

    def take(self, task: str, order: str, recording: StepRecording) -> None:
        """Keeps what a worker has recorded; what belongs to an older order is of no use any more."""
        if self._order is not None and order == self._order.order and task in self._order.workers:
            self._recordings[task] = replace(recording, task=task)

    def recordings(self) -> rec.Recordings:
        """What has come."""
        return rec.Recordings(self._order, tuple(self._recordings.values()), self.wanted() is None)
