"""Votes: the questions of a replica to the arbiter of its term, and the answers."""

from __future__ import annotations

from collections.abc import Callable

from trainband.ps.replication.failover import Role
from trainband.ps.replication.notices import Notices
from trainband.ps.replication.other_replica import OtherReplica
from trainband.ps.replication.record_taker import RecordTaker
from trainband.ps.replication.role_changes import RoleChanges
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.replication.wakeups import Wakeups


class Votes:
    """Of one replica.

    Args:
      replica: which.
      other: the other replica of its shard.
      wakeups: who is woken up when the arbiter has decided.
      notices: who is told.
      roles: what is done when this replica comes to hold the shard.
      taker: what is done first.
      arbiter: called under the lock with the present one and the other replica's host: who should decide.
      names: what the worker with this name of an arbiter is called.
      heard_s: called under the lock: seconds since it was heard here.
    """

    def __init__(
        self,
        replica: ShardReplica,
        other: OtherReplica,
        wakeups: Wakeups,
        notices: Notices,
        roles: RoleChanges,
        taker: RecordTaker,
        *,
        arbiter: Callable[[str, str], str],
        names: Callable[[str], str],
        heard_s: Callable[[str], float],
    ) -> None:
        self._replica = replica
        self._failover = replica.failover
        self._other = other
        self._wakeups = wakeups
        self._notices = notices
        self._roles = roles
        self._taker = taker
        self._arbiter = arbiter
        self._names = names
        self._heard_s = heard_s

    @property
    def arbiter_name(self) -> str:
        """What people call the one who decides."""
        return self._names(self._failover.term.arbiter)

    def next_arbiter(self) -> str:
        """Who should decide from now on. Called under the lock."""
        return self._arbiter(self._failover.term.arbiter, self._other.host)

    def ask(self) -> None:
        """Asks the arbiter, if there is somebody to replace.

        Not while the arbiter is not heard here: then it is this ps that is cut off, and when it is back it shall first
        look whether the other replica is.
        """
        with self._wakeups.lock:
            if self._heard_s(self._failover.term.arbiter) > self._other.timeouts.lease_s / 2:
                return
            if self._failover.role is Role.STANDBY or self._failover.log.lacks_standby:
                self._failover.ask()

    def granted(self, term: int, yes: bool, by: str) -> None:
        """The arbiter's word. Called under the lock."""
        failover = self._failover
        if not term or failover.vote_request != term:
            return
        if not yes:
            failover.granted(term, yes)  # the other ps goes on, and says so itself
        elif failover.holds:
            failover.granted(term, yes)
            self._notices.say(f"ps:{failover.me} goes on with {self._replica.name} alone: so {by} has decided")
            self._wakeups.changed.notify_all()
        else:
            self._taker.when_all_is_taken(lambda: self._accept(term, by))

    def _accept(self, term: int, by: str) -> None:
        if self._failover.granted(term, yes=True):  # else what was taken meanwhile has changed whom to ask
            self._roles.took_over(f"so {by} has decided")
