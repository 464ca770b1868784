"""RoleChanges: the actions and messages when a replica starts to hold its shard, or stops holding or following it.

Called under the lock.
"""

from __future__ import annotations

from trainband.ps.replication.replicator.other_replica import OtherReplica
from trainband.ps.replication.replicator.state import ReplicatorState
from trainband.runtime.logs import task_logger


class RoleChanges:
    """The role changes of one replica."""

    def __init__(self, state: ReplicatorState, other: OtherReplica) -> None:
        self._state = state
        self._replica = state.replica
        self._failover = state.failover
        self._other = other
        self._announced = False
        self._log = task_logger(__name__, f"ps:{state.failover.me}")

    def has_standby(self) -> None:
        """Announces, once, that the other replica is the standby."""
        if not self._announced:
            self._announced = True
            self._log.info("ps:%d is the standby of %s", self._failover.other, self._replica.name)
            self._state.say(f"ps:{self._failover.other} is the standby of {self._replica.name}")

    def has_new_follower(self) -> None:
        """Notes that the other replica was sent a snapshot and is not a standby yet."""
        self._announced = False

    def took_over(self, why: str) -> None:
        """Starts to hold the shard."""
        replica, failover = self._replica, self._failover
        self._state.end_wait()
        replica.held_since = self._state.clock()
        replica.take_over()
        self._log.info("takes %s over in term %d: %s", replica.name, failover.term.number, why)
        self._state.say(
            f"ps:{failover.me} takes over {replica.name} at version {replica.version:,} "
            f"(term {failover.term.number}): {why}"
        )
        self._state.notify()

    def stepped_down(self, successor: str) -> None:
        """Notes that the other replica has taken the shard handed over and will call."""
        self._log.info("handed %s over to ps:%d", self._replica.name, self._failover.other)
        self._other.record_contact()
        self._announced = False
        self._other.primary = (successor, 0)
        self._state.changed.notify_all()

    def deposed(self, why: str) -> None:
        """Gives up this replica's values: the other one holds the shard."""
        self._log.info("no longer holds %s: %s", self._replica.name, why)
        self._state.say(f"ps:{self._failover.me} no longer holds {self._replica.name}: {why}")
        self._failover.step_down()
        self._replica.forget()
        self._announced = False
        self._state.changed.notify_all()

    def cannot_follow(self, exc: Exception) -> None:
        """Stops following, because the primary's records could not be applied."""
        self._state.say(f"ps:{self._failover.me} cannot follow {self._replica.name}: {exc}")
        self._failover.step_down()
        self._replica.forget()
