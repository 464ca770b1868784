"""PrimaryWatch: a standby's watch over its primary, which it replaces once that can no longer hold the shard."""

from __future__ import annotations

from trainband.errors import PeerError, Unreachable
from trainband.ps.replication.failover import Role
from trainband.ps.replication.replicator.other_replica import OtherReplica
from trainband.ps.replication.replicator.record_receiver import RecordReceiver
from trainband.ps.replication.replicator.role_changes import RoleChanges
from trainband.ps.replication.replicator.state import ReplicatorState
from trainband.ps.replication.replicator.vote_requests import VoteRequests


class PrimaryWatch:
    """The watch of one replica, while it follows the other."""

    def __init__(
        self,
        state: ReplicatorState,
        other: OtherReplica,
        roles: RoleChanges,
        receiver: RecordReceiver,
        votes: VoteRequests,
    ) -> None:
        self._state = state
        self._replica = state.replica
        self._failover = state.failover
        self._other = other
        self._roles = roles
        self._receiver = receiver
        self._votes = votes

    def poll(self) -> None:
        replica, failover, other = self._replica, self._failover, self._other
        silent_s = min(other.silent_s, self._receiver.moved_s)
        if (self._receiver.is_led and silent_s < other.timeouts.lease_s) or replica.is_deserted:
            self._state.end_wait()
            return
        if failover.role is Role.LEARNER:
            with self._state.lock:
                failover.step_down()
                replica.forget()
            return
        waiting = self._state.start_wait()
        if silent_s >= other.timeouts.lease_s:
            self._votes.ask()
        primary = failover.term.primary
        decides = f"{self._votes.arbiter_name} to let ps:{failover.me} take over"
        waiting.check(f"ps:{primary}, which holds {replica.name}, to come back, or {decides}", "")
        asked_at, replicas = self._state.clock(), None
        try:
            replicas = other.state(primary).replicas
        except Unreachable:
            pass  # if it is not heard otherwise, the arbiter decides
        except PeerError:
            return
        if other.heard_at >= asked_at:
            return  # it has come back meanwhile: the answer is outdated
        if replicas is None:
            self._votes.ask()
            return
        found = next((one for one in replicas if one.shard == replica.number), None)
        if found is None or found.incarnation != other.primary[0]:
            self._succeed("the process that held it has died", asked_at)
        elif found.role != Role.PRIMARY.value:
            self._votes.ask()

    def _succeed(self, why: str, asked_at: float) -> None:
        """Takes the shard over, as no other ps can hold it, unless the other was heard since `asked_at`."""

        def take_over() -> None:
            if self._failover.role is Role.STANDBY and self._failover.lead_alone():
                self._roles.took_over(why)

        with self._state.lock:
            if self._other.heard_at < asked_at:
                self._receiver.when_all_applied(take_over)
