"""Replicator: the thread and the sockets around a replica's failover.

On a primary it recruits the standby (`Recruiter`) and sends it the records (`RecordSender`). On a standby it takes
them (`RecordReceiver`) and watches the primary (`PrimaryWatch`). On either it asks the arbiter (`VoteRequests`).
"""

from __future__ import annotations

from trainband.errors import PeerError
from trainband.ps.membership.arbiter_choice import ArbiterChoice
from trainband.ps.replication.failover import Role
from trainband.ps.replication.replicator.other_replica import Connect, OtherReplica
from trainband.ps.replication.replicator.primary_watch import PrimaryWatch
from trainband.ps.replication.replicator.record_receiver import RecordReceiver
from trainband.ps.replication.replicator.record_sender import RecordSender
from trainband.ps.replication.replicator.recruiter import Recruiter
from trainband.ps.replication.replicator.role_changes import RoleChanges
from trainband.ps.replication.replicator.state import ReplicatorState
from trainband.ps.replication.replicator.vote_requests import VoteRequests
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.task_state import TaskState

TICK_S = 0.1
"""Seconds between two checks of the other replica."""


class Replicator:
    """Keeps one replica up to date with the other."""

    def __init__(self, replica: ShardReplica, task: TaskState, connect: Connect, arbiters: ArbiterChoice) -> None:
        self._state = state = ReplicatorState(replica, task)
        self._replica = replica
        self._failover = replica.failover
        self.other = other = OtherReplica(state, connect)
        """The other replica of the shard."""
        roles = RoleChanges(state, other)
        self.receiver = receiver = RecordReceiver(state, other, roles)
        """Takes the records of a primary."""
        self.vote_requests = votes = VoteRequests(state, other, roles, receiver, arbiters)
        """Asks the arbiter."""
        self.sender = RecordSender(state, other, roles, votes)
        """Sends the records of a primary."""
        self._recruiter = Recruiter(state, other, roles, votes, self.sender)
        self._watch = PrimaryWatch(state, other, roles, receiver, votes)
        self._thread = task.runtime.thread(self._run, f"trainband-replica-{replica.number}")

    def start(self) -> None:
        """Starts the thread once. Called under the lock."""
        if not self._thread.is_alive() and not self._state.stopped:
            self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Stops the thread. Called without the lock. Idempotent."""
        self._state.stop()
        self.sender.hang_up()  # which ends the thread's waits
        if self._thread.is_alive():
            self._thread.join(grace_s)
        self.sender.hang_up()

    def changed(self) -> None:
        """Notifies the thread of a new role, or a worker that joined or went. Called under the lock."""
        self._state.notify()

    def _run(self) -> None:
        while self._goes_on():
            role = self._failover.role
            try:
                if role is Role.PRIMARY:
                    self._recruiter.poll()
                elif role in (Role.STANDBY, Role.LEARNER):
                    self.sender.hang_up()  # of a former primary
                    self._watch.poll()
            except PeerError as exc:
                self._state.report_once(f"{self._replica.name}: {exc}")
            except Exception as exc:  # without its replicator, the shard would never have a standby again
                self._state.report_once(f"{self._replica.name}: {type(exc).__name__}: {exc}")

    def _goes_on(self) -> bool:
        """Waits for the next check of the other replica; returns whether there is one."""
        self._state.wake.wait(TICK_S)
        self._state.wake.clear()
        return not self._state.stopped
