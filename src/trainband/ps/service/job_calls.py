"""JobCalls: the control calls that observe or end a job."""

from __future__ import annotations

from trainband.job.statistics import PsStatus
from trainband.ps.membership.members import Member
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.service.lifecycle import Lifecycle
from trainband.ps.service.recording_orders import RecordingOrders
from trainband.ps.service.status import StatusReporter
from trainband.runtime.formatting import one_line
from trainband.wire.limits import LIMITS
from trainband.wire.messages import calls as m
from trainband.wire.messages.following import JobLayout
from trainband.wire.messages.recording import Recorded, RecordingOrder, Recordings, RecordSteps
from trainband.wire.transport import Caller


class JobCalls:
    """Calls for status, step recordings and shutdown."""

    def __init__(self, status: StatusReporter, recordings: RecordingOrders, lifecycle: Lifecycle) -> None:
        self._status = status
        self._recordings = recordings
        self._lifecycle = lifecycle

    def state(self, replica: ShardReplica, _: None, __: Caller) -> m.JobState:
        """Returns a replica's job state."""
        return self._status.job_state(replica)

    def status(self, replica: ShardReplica, _: None, __: Caller) -> PsStatus:
        """Returns the status for display. Called without the lock."""
        return self._status.ps_status(replica)

    def layout(self, _: ShardReplica, __: None, ___: Caller) -> JobLayout:
        """Returns the job's layout."""
        return self._status.layout()

    def record_steps(self, _: ShardReplica, asked: RecordSteps, __: Caller) -> RecordingOrder:
        return self._recordings.order(asked.steps)

    def recordings(self, _: ShardReplica, __: None, ___: Caller) -> Recordings:
        return self._recordings.recordings()

    def recorded(self, replica: ShardReplica, recorded: Recorded, member: Member) -> m.JobState:
        """Stores a worker's recording."""
        self._recordings.store(member.task, recorded.order, recorded.recording)
        return self._status.job_state(replica)

    def shutdown(self, replica: ShardReplica, shutdown: m.Shutdown, _: Caller) -> m.JobState:
        """Ends the task."""
        self._lifecycle.shut_down(one_line(shutdown.reason, LIMITS.failure_length))
        return self._status.job_state(replica)
