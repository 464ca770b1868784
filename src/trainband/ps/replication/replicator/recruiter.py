"""Recruiter: finds a primary's standby, makes it follow, and fails the shard back to it if it is the shard's own ps."""

from __future__ import annotations

from itertools import count

from trainband.errors import DeadlineExceeded, PeerError, Refused, Unreachable
from trainband.ps.program.compiled_program import COMPILER
from trainband.ps.replication.failover import Fenced, Role
from trainband.ps.replication.replicator.other_replica import OtherReplica
from trainband.ps.replication.replicator.record_sender import WAIT_S, RecordSender
from trainband.ps.replication.replicator.role_changes import RoleChanges
from trainband.ps.replication.replicator.state import ReplicatorState
from trainband.ps.replication.replicator.vote_requests import VoteRequests
from trainband.runtime.waiting import NOTICE_EVERY_S
from trainband.version import VERSION
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r
from trainband.wire.messages.codec import decode, encode

RETRY_S = 0.5
"""Seconds between two attempts to find a standby when no task waits for it."""


class Recruiter:
    """The recruiter of one replica, while it is the primary."""

    def __init__(
        self, state: ReplicatorState, other: OtherReplica, roles: RoleChanges, votes: VoteRequests, sender: RecordSender
    ) -> None:
        self._state = state
        self._replica = state.replica
        self._failover = state.failover
        self._lock = state.lock
        self._clock = state.clock
        self._other = other
        self._roles = roles
        self._votes = votes
        self._sender = sender
        self._secure_since: float | None = None
        self._streams = count(1)

    def poll(self) -> None:
        """Does what is due: finds a standby, sends it unsent records, or hands the shard over to it."""
        sender = self._sender
        stream = sender.stream
        if stream is not None and not stream.alive:
            sender.lose(f"{stream.peer} has gone.", stream)
        failover = self._failover
        with self._lock:
            renames = failover.secure and self._votes.next_arbiter() != failover.term.arbiter
        # An arbiter named while the standby is silent could not be asked until the standby knows of it.
        if renames and not sender.exchanged(asks=True):
            return
        with self._lock:
            failover.name_arbiter(self._votes.next_arbiter())
            unsent = failover.log.behind
        if sender.stream is None or failover.log.follower is None:
            self._recruit()
            return
        if unsent or sender.is_due:
            sender.exchanged()
        if self._is_to_fail_back():
            self._fail_back()

    def _is_to_fail_back(self) -> bool:
        """Whether the shard's own ps is the other one and has been its standby for a lease."""
        if self._replica.number == self._failover.me or not (self._failover.holds and self._failover.secure):
            self._secure_since = None
            return False
        if self._secure_since is None:
            self._secure_since = self._clock()
        return self._clock() - self._secure_since >= self._other.timeouts.lease_s

    def _fail_back(self) -> None:
        """Returns the shard to the other ps if that sees the same workers and no checkpoint is under way."""
        replica, failover, sender = self._replica, self._failover, self._sender
        if not replica.may_fail_back():
            return
        self._secure_since = self._clock()  # if it fails, it is tried again after a lease
        there = self._other.state(failover.other)
        if not sender.sending.acquire(timeout=WAIT_S):
            return
        try:
            sender.exchange(asks=True)  # afterwards little is left to send
            with self._lock:
                if not (failover.holds and failover.secure and replica.may_fail_back(there)):
                    return
                replica.require_updater().detach()  # no worker waits for an answer from here
                failover.fail_back()
                self._state.changed.notify_all()
            self._state.say(f"ps:{failover.me} returns {replica.name} to ps:{failover.other} (failback)")
            sender.exchange(asks=True)
        finally:
            sender.sending.release()

    def _recruit(self) -> None:
        """Invites the other replica to take the records, from its position or after a snapshot."""
        replica, failover, sender = self._replica, self._failover, self._sender
        self._secure_since = None
        self._report_wait()
        with self._lock:
            assert replica.definition is not None
            invite = m.Invite(replica.state(), replica.definition.define, VERSION, COMPILER)
        try:
            sender.hang_up()
            self._other.state(failover.other)  # do not wait for an unreachable one as for one that compiles
            sender.connection = connection = self._other.connect(failover.other)
            lease_s = self._other.timeouts.lease_s
            answer = connection.call(f"invite/{replica.number}", encode(invite), timeout_s=lease_s)
            other = decode(answer, r.ReplicaState, f"ps:{failover.other}")
        except (Unreachable, DeadlineExceeded) as exc:
            if failover.log.lacks_standby and isinstance(exc, Unreachable):
                self._votes.ask()
            elif not failover.log.lacks_standby:
                self._state.wake.wait(RETRY_S)
            return
        except Refused as exc:
            self._state.report_once(f"WARNING: {replica.name} has no standby: {exc}")
            self._state.wake.wait(NOTICE_EVERY_S)
            return
        self._other.host = other.host
        with self._lock:
            if not self._meet(other):
                return
            knows_nothing = failover.log.follower is None
        try:
            stream = connection.open_stream(timeout_s=self._other.timeouts.connect_s)
            hello = r.ReplicationHello(replica.number, failover.me, invite.replica.incarnation, next(self._streams))
            stream.send(encode(hello))
            if knows_nothing:
                sender.install_snapshot(stream, other.incarnation)
            sender.stream = stream
            replica.transport = stream.transport
            self._state.wake.set()  # a thread may wait for records to be sent
        except PeerError as exc:
            sender.lose(str(exc))

    def _report_wait(self) -> None:
        """Reports a wait for the standby, if any, and asks the arbiter in time."""
        failover, other = self._failover, self._other
        if not failover.log.lacks_standby:
            self._state.end_wait()
            return
        waiting = self._state.start_wait()
        decides = f", or {self._votes.arbiter_name} to let ps:{failover.me} continue alone"
        waiting.check(f"ps:{failover.other}, the standby of {self._replica.name}, to come back{decides}", "")
        if other.silent_s >= other.timeouts.lease_s:
            self._votes.ask()

    def _meet(self, other: r.ReplicaState) -> bool:
        """Whether this replica is still the primary after the other one's answer. Called under the lock."""
        failover = self._failover
        if failover.role is not Role.PRIMARY:
            return False
        was_in_doubt = failover.in_doubt
        try:
            failover.meet(Role(other.role), other.lineage, other.term.number, other.position, other.incarnation)
        except Fenced:
            self._roles.deposed(f"ps:{other.ps} has taken over")
            return False
        finally:
            self._state.changed.notify_all()
        if not (failover.holds or failover.in_doubt):
            self._roles.stepped_down(other.incarnation)
            return False
        if was_in_doubt and failover.holds:
            self._roles.took_over("the process that it was returned to has died")
        return True
