"""Recruiter: finds a primary its standby, has it follow, and fails the shard back to it where it is that one's own."""

from __future__ import annotations

from itertools import count

from trainband.errors import DeadlineExceeded, PeerError, Refused, Unreachable
from trainband.ps.replication.failover import Fenced, Role
from trainband.ps.replication.notices import Notices
from trainband.ps.replication.other_replica import OtherReplica
from trainband.ps.replication.record_sender import WAIT_S, RecordSender
from trainband.ps.replication.role_changes import RoleChanges
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.replication.votes import Votes
from trainband.ps.replication.wakeups import Wakeups
from trainband.ps.server.program import COMPILER
from trainband.runtime import Clock
from trainband.runtime.waiting import NOTICE_EVERY_S
from trainband.version import VERSION
from trainband.wire import messages as m
from trainband.wire import replication as r
from trainband.wire.codec import decode, encode

RETRY_S = 0.5
"""Between two attempts to find a standby where nobody waits for it."""


class Recruiter:
    """Of one replica, while it is the primary.

    Args:
      replica: which.
      other: the other replica of its shard.
      wakeups: who is woken up when there is a standby, or none any more.
      notices: who is told.
      roles: what is done when this replica gets another role.
      votes: the questions to the arbiter.
      sender: sends the records.
      clock: this task's.
    """

    def __init__(
        self,
        replica: ShardReplica,
        other: OtherReplica,
        wakeups: Wakeups,
        notices: Notices,
        roles: RoleChanges,
        votes: Votes,
        sender: RecordSender,
        clock: Clock,
    ) -> None:
        self._replica = replica
        self._failover = replica.failover
        self._other = other
        self._wakeups = wakeups
        self._lock = wakeups.lock
        self._notices = notices
        self._roles = roles
        self._votes = votes
        self._sender = sender
        self._clock = clock
        self._secure_since: float | None = None
        self._streams = count(1)

    def look(self) -> None:
        """Does what is due: finds a standby, sends it what it has not got, or hands the shard over to it."""
        sender = self._sender
        stream = sender.stream
        if stream is not None and not stream.alive:
            sender.lose(f"{stream.peer} is not there any more.", stream)
        failover = self._failover
        with self._lock:
            renames = failover.secure and self._votes.next_arbiter() != failover.term.arbiter
        # One that is named while the standby is silent could not be asked, as long as that does not know of it.
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
        """Whether the shard is the other ps's own, which has been its standby for a lease by now."""
        if self._replica.number == self._failover.me or not (self._failover.holds and self._failover.secure):
            self._secure_since = None
            return False
        if self._secure_since is None:
            self._secure_since = self._clock()
        return self._clock() - self._secure_since >= self._other.timeouts.lease_s

    def _fail_back(self) -> None:
        """Gives the shard to the other ps, if that sees the same workers in the job, and nothing is under way."""
        replica, failover, sender = self._replica, self._failover, self._sender
        if not replica.may_fail_back:
            return
        self._secure_since = self._clock()  # if it comes to nothing, it is tried again after a lease
        there = self._other.state(failover.other)
        if not sender.sending.acquire(timeout=WAIT_S):
            return
        try:
            sender.exchange(asks=True)  # then it is there, and little is left to be sent
            with self._lock:
                if not (failover.holds and failover.secure and replica.may_fail_back and replica.sees_the_same(there)):
                    return
                replica.fail_back()
                self._wakeups.changed.notify_all()
            self._notices.say(f"ps:{failover.me} hands {replica.name} over to ps:{failover.other}, whose it is")
            sender.exchange(asks=True)
        finally:
            sender.sending.release()

    def _recruit(self) -> None:
        """Tries to get the other replica to take the records, from where it is or from the beginning."""
        replica, failover, sender = self._replica, self._failover, self._sender
        self._secure_since = None
        if failover.log.lacks_standby:
            waiting = self._notices.begin_wait()
            decides = f", or {self._votes.arbiter_name} to let ps:{failover.me} go on alone"
            waiting.check(f"ps:{failover.other}, the standby of {replica.name}, to come back{decides}", "")
            if self._other.silent_s >= self._other.timeouts.lease_s:
                self._votes.ask()
        else:
            self._notices.end_wait()
        with self._lock:
            assert replica.define is not None
            invite = m.Invite(replica.state(), replica.define, VERSION, COMPILER)
        try:
            sender.hang_up()
            self._other.state(failover.other)  # one that cannot be reached is not waited for as one that compiles
            sender.connection = connection = self._other.connect(failover.other)
            lease_s = self._other.timeouts.lease_s
            answer = connection.call(f"invite/{replica.number}", encode(invite), timeout_s=lease_s)
            other = decode(answer, r.ReplicaState, f"ps:{failover.other}")
        except (Unreachable, DeadlineExceeded) as exc:
            if failover.log.lacks_standby and isinstance(exc, Unreachable):
                self._votes.ask()
            elif not failover.log.lacks_standby:
                self._wakeups.wake.wait(RETRY_S)
            return
        except Refused as exc:
            self._notices.tell(f"WARNING: {replica.name} has no standby: {exc}")
            self._wakeups.wake.wait(NOTICE_EVERY_S)
            return
        self._other.host = other.host
        with self._lock:
            if failover.role is not Role.PRIMARY:
                return
            was_in_doubt = failover.in_doubt
            try:
                at = failover.meet(
                    Role(other.role), other.lineage, other.term.number, other.position, other.incarnation
                )
            except Fenced:
                self._roles.deposed(f"ps:{other.ps} has taken it over")
                return
            finally:
                self._wakeups.changed.notify_all()
            if not (failover.holds or failover.in_doubt):
                self._roles.stepped_down(other.incarnation)
                return
            if was_in_doubt and failover.holds:
                self._roles.took_over("the process that it was handed to has died")
        try:
            stream = connection.open_stream(timeout_s=self._other.timeouts.connect_s)
            stream.send(
                encode(r.ReplicationHello(replica.number, failover.me, invite.replica.incarnation, next(self._streams)))
            )
            if at is None:
                sender.install_snapshot(stream, other.incarnation)
            sender.stream = stream
            replica.transport = stream.transport
            self._wakeups.wake.set()  # somebody may wait for what it is to be sent
        except PeerError as exc:
            sender.lose(str(exc))
