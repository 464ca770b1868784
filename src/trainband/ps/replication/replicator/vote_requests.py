"""VoteRequests: a replica's requests to the arbiter of its term, and the actions after the vote."""

from __future__ import annotations

from trainband.ps.membership.arbiter_choice import ArbiterChoice
from trainband.ps.replication.failover import Role
from trainband.ps.replication.replicator.other_replica import OtherReplica
from trainband.ps.replication.replicator.record_receiver import RecordReceiver
from trainband.ps.replication.replicator.role_changes import RoleChanges
from trainband.ps.replication.replicator.state import ReplicatorState


class VoteRequests:
    """The vote requests of one replica."""

    def __init__(
        self,
        state: ReplicatorState,
        other: OtherReplica,
        roles: RoleChanges,
        receiver: RecordReceiver,
        arbiters: ArbiterChoice,
    ) -> None:
        self._state = state
        self._replica = state.replica
        self._failover = state.failover
        self._other = other
        self._roles = roles
        self._receiver = receiver
        self._arbiters = arbiters

    @property
    def arbiter_name(self) -> str:
        """The arbiter's name, for messages."""
        return self._arbiters.name(self._failover.term.arbiter)

    def next_arbiter(self) -> str:
        """The arbiter from now on. Called under the lock."""
        return self._arbiters.choose(self._failover.term.arbiter, self._other.host)

    def ask(self) -> None:
        """Asks the arbiter, if there is another replica to replace.

        It does not ask while the arbiter is silent: then this ps is cut off, and must first check, once it is back,
        whether the other replica is there.
        """
        with self._state.lock:
            if self._arbiters.silent_s(self._failover.term.arbiter) > self._other.timeouts.lease_s / 2:
                return
            if self._failover.role is Role.STANDBY or self._failover.log.lacks_standby:
                self._failover.ask()

    def granted(self, term: int, yes: bool, by: str) -> None:
        """Takes the arbiter's vote. Called under the lock."""
        failover = self._failover
        if not term or failover.vote_request != term:
            return
        if not yes:
            failover.granted(term, yes)  # the other ps continues, and reports so itself
        elif failover.holds:
            failover.granted(term, yes)
            self._state.say(f"ps:{failover.me} now serves {self._replica.name} without a standby (vote of {by})")
            self._state.changed.notify_all()
        else:
            self._receiver.when_all_applied(lambda: self._accept(term, by))

    def _accept(self, term: int, by: str) -> None:
        if self._failover.granted(term, yes=True):  # else records taken meanwhile have changed the arbiter
            self._roles.took_over(f"vote of {by}")
