"""PrimaryWatch: a standby's look at its primary, which it replaces when that cannot hold the shard any more."""

from __future__ import annotations

from trainband.errors import PeerError, Unreachable
from trainband.ps.replication.failover import Role
from trainband.ps.replication.notices import Notices
from trainband.ps.replication.other_replica import OtherReplica
from trainband.ps.replication.record_taker import RecordTaker
from trainband.ps.replication.role_changes import RoleChanges
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.replication.votes import Votes
from trainband.runtime import Clock, Lock


class PrimaryWatch:
    """Of one replica, while it follows the other.

    Args:
      replica: which.
      lock: the service's, which guards it.
      other: the other replica of its shard.
      notices: who is told.
      roles: what is done when this replica comes to hold the shard.
      taker: has the primary's stream.
      votes: the questions to the arbiter.
      clock: this task's.
    """

    def __init__(
        self,
        replica: ShardReplica,
        lock: Lock,
        other: OtherReplica,
        notices: Notices,
        roles: RoleChanges,
        taker: RecordTaker,
        votes: Votes,
        clock: Clock,
    ) -> None:
        self._replica = replica
        self._failover = replica.failover
        self._lock = lock
        self._other = other
        self._notices = notices
        self._roles = roles
        self._taker = taker
        self._votes = votes
        self._clock = clock

    def look(self) -> None:
        """Looks whether the primary lives."""
        replica, failover, other = self._replica, self._failover, self._other
        silent_s = other.silent_s
        if (self._taker.is_led and silent_s < other.timeouts.lease_s) or replica.deserted:
            self._notices.end_wait()
            return
        if failover.role is Role.LEARNER:
            with self._lock:
                failover.step_down()
                replica.forget()
            return
        waiting = self._notices.begin_wait()
        if silent_s >= other.timeouts.lease_s:
            self._votes.ask()
        primary = failover.term.primary
        decides = f"{self._votes.arbiter_name} to let ps:{failover.me} take over"
        waiting.check(f"ps:{primary}, which holds {replica.name}, to come back, or {decides}", "")
        asked_at, replicas = self._clock(), None
        try:
            replicas = other.state(primary).replicas
        except Unreachable:
            pass  # if it is not heard either, the arbiter decides
        except PeerError:
            return
        if other.heard_at >= asked_at:
            return  # it has come back meanwhile: the answer is of before
        if replicas is None:
            self._votes.ask()
            return
        found = next((one for one in replicas if one.shard == replica.number), None)
        if found is None or found.incarnation != other.leader[0]:
            self._succeed("the process that held it has died", asked_at)
        elif found.role != Role.PRIMARY.value:
            self._votes.ask()

    def _succeed(self, why: str, asked_at: float) -> None:
        """Takes the shard over, because nobody else can hold it; unless another was heard since this moment."""

        def take_over() -> None:
            if self._failover.role is Role.STANDBY and self._failover.lead_alone():
                self._roles.took_over(why)

        with self._lock:
            if self._other.heard_at < asked_at:
                self._taker.when_all_is_taken(take_over)
