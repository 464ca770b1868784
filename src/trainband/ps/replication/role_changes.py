"""RoleChanges: what is done and said when a replica comes to hold its shard, or holds or follows it no longer.

Called under the lock.
"""

from __future__ import annotations

from trainband.ps.replication.notices import Notices
from trainband.ps.replication.other_replica import OtherReplica
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.replication.wakeups import Wakeups
from trainband.runtime import Clock
from trainband.runtime.logs import task_logger


class RoleChanges:
    """Of one replica.

    Args:
      replica: which.
      other: the other replica of its shard.
      wakeups: who is woken up.
      notices: who is told.
      clock: this task's.
    """

    def __init__(
        self, replica: ShardReplica, other: OtherReplica, wakeups: Wakeups, notices: Notices, clock: Clock
    ) -> None:
        self._replica = replica
        self._failover = replica.failover
        self._other = other
        self._wakeups = wakeups
        self._notices = notices
        self._clock = clock
        self._announced = False
        self._log = task_logger(__name__, f"ps:{replica.failover.me}")

    def has_standby(self) -> None:
        """The other replica knows that it may succeed, which is said once."""
        if not self._announced:
            self._announced = True
            self._log.info("ps:%d is the standby of %s", self._failover.other, self._replica.name)
            self._notices.say(f"ps:{self._failover.other} is the standby of {self._replica.name}")

    def has_new_follower(self) -> None:
        """The other replica was sent everything, and is no standby yet."""
        self._announced = False

    def took_over(self, why: str) -> None:
        """The replica has come to hold the shard."""
        replica, failover = self._replica, self._failover
        self._notices.end_wait()
        replica.held_since = self._clock()
        replica.take_over()
        self._log.info("takes %s over in term %d: %s", replica.name, failover.term.number, why)
        self._notices.say(
            f"ps:{failover.me} takes {replica.name} over at version {replica.version:,} "
            f"(term {failover.term.number}): {why}"
        )
        self._wakeups.notify()

    def stepped_down(self, successor: str) -> None:
        """The other replica has taken what this one has handed over, and will come."""
        self._log.info("handed %s over to ps:%d", self._replica.name, self._failover.other)
        self._other.heard()
        self._announced = False
        self._other.leader = (successor, 0)
        self._wakeups.changed.notify_all()

    def deposed(self, why: str) -> None:
        """The other replica holds the shard, and what this one has does not count any more."""
        self._log.info("does not hold %s any more: %s", self._replica.name, why)
        self._notices.say(f"ps:{self._failover.me} does not hold {self._replica.name} any more: {why}")
        self._failover.step_down()
        self._replica.forget()
        self._announced = False
        self._wakeups.changed.notify_all()

    def cannot_follow(self, exc: Exception) -> None:
        """What the primary has sent could not be done: this replica is not its standby any more."""
        self._notices.say(f"ps:{self._failover.me} cannot follow {self._replica.name}: {exc}")
        self._failover.step_down()
        self._replica.forget()
