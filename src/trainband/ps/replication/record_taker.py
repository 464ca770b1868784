"""RecordTaker: the standby's end of a primary's stream.

The standby has a record when it says so. On a stream that keeps what is sent (between two ps of one machine) it has it
as soon as it is sent: it takes the shard over only once nothing more can be sent to it and it has done all that was. So
no worker waits there for the standby's process to be given a processor.
"""

from __future__ import annotations

from collections.abc import Callable

from trainband.errors import PeerError, ProtocolError, Refused, StreamClosed, TrainbandError
from trainband.ps.replication.failover import Fenced, Role
from trainband.ps.replication.other_replica import OtherReplica
from trainband.ps.replication.role_changes import RoleChanges
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.replication.wakeups import Wakeups
from trainband.wire import replication as r
from trainband.wire.codec import decode_any, encode
from trainband.wire.transport import Frame, Stream


class RecordTaker:
    """Does what the primary of a shard sends to this replica.

    Args:
      replica: which.
      other: the other replica of its shard.
      wakeups: who is woken up at a stream's end.
      roles: what is done when this replica gets another role.
    """

    def __init__(self, replica: ShardReplica, other: OtherReplica, wakeups: Wakeups, roles: RoleChanges) -> None:
        self._replica = replica
        self._failover = replica.failover
        self._other = other
        self._wakeups = wakeups
        self._lock = wakeups.lock
        self._roles = roles
        self._leading: Stream | None = None
        self._at_its_end: Callable[[], None] | None = None

    @property
    def is_led(self) -> bool:
        """Whether there is a primary's stream."""
        return self._leading is not None

    def follow(self, stream: Stream, lead: r.ReplicationHello, stopped: Callable[[], bool]) -> None:
        """Serves a primary's stream, until it ends."""
        other, wakeups = self._other, self._wakeups
        with self._lock:
            if lead.incarnation == other.leader[0] and lead.number < other.leader[1]:
                return  # it was given up for another, which has come first
            self._leading, other.leader = stream, (lead.incarnation, lead.number)
            self._at_its_end = None
            other.heard()
        is_empty = False
        try:
            while not (stopped() or wakeups.stopped):
                frame = stream.receive(other.timeouts.heartbeat_s)
                if self._leading is not stream:
                    return  # it has come again, on another stream
                if frame is None:
                    continue
                other.heard()
                taken = self._taken(decode_any(frame.header, r.Upward, stream.peer), frame, stream)
                if taken.fenced:
                    stream.send(encode(taken))
                    return
        except StreamClosed:
            is_empty = True  # all that was sent is done
            raise
        except Exception as exc:
            with self._lock:
                follows = self._failover.role in (Role.STANDBY, Role.LEARNER)
                if self._leading is stream and stream.keeps and follows:
                    self._roles.cannot_follow(exc)  # what is left in the stream counts as taken
            raise
        finally:
            with self._lock:
                self._ended(stream, takes_over=is_empty and not (stopped() or wakeups.stopped))
            wakeups.wake.set()

    def _ended(self, stream: Stream, *, takes_over: bool) -> None:
        if self._leading is not stream:
            return
        self._leading = None
        then, self._at_its_end = self._at_its_end, None
        try:
            if then is not None and takes_over:
                then()
        finally:
            self._wakeups.changed.notify_all()

    def when_all_is_taken(self, then: Callable[[], None]) -> None:
        """Does this once no more can be sent to this replica, and what was sent is done. Called under the lock.

        At once, but where the stream keeps what is sent: what is in it counts as taken.
        """
        if self._leading is None or not self._leading.keeps:
            then()
            return
        self._at_its_end = then
        self._leading.refuse_more()

    def await_all_taken(self) -> None:
        """Returns when all is done that is left in a stream which the primary has given up. Called under the lock.

        Raises:
          Refused: there still is something after half a lease; whoever asks waits for a whole one.
        """
        keeps, lease_s = self._leading is not None and self._leading.keeps, self._other.timeouts.lease_s
        if keeps and not self._wakeups.changed.wait_for(lambda: self._leading is None, lease_s / 2):
            raise Refused(f"ps:{self._failover.me} has not done yet all that it was sent for {self._replica.name}.")

    def _taken(self, record: r.Upward, frame: Frame, stream: Stream) -> r.Taken:
        replica, failover = self._replica, self._failover
        with self._lock:
            if isinstance(record, r.InstallSnapshot):
                if replica.define is None:
                    raise ProtocolError(
                        f"ps:{failover.me} has come since, and was not asked to hold {replica.name} yet."
                    )
                if not failover.may_install(record.lineage, record.term.number):
                    return self._fenced()
                if failover.role is Role.PRIMARY:
                    self._roles.deposed(f"ps:{record.term.primary} has taken it over")
                replica.install_snapshot(record, frame.body)
                taken = r.Taken(failover.position)
                stream.send(encode(taken))
                return taken
            if not isinstance(record, r.Records):
                raise ProtocolError(f"{stream.peer} opened its stream twice.")
            was_in_doubt, leader = failover.in_doubt, self._other.leader[0]
            try:
                old = failover.take(record.lineage, record.term, record.first, record.records, leader)
            except Fenced:
                return self._fenced()
            except ValueError as exc:
                self._roles.cannot_follow(exc)
                raise ProtocolError(f"{stream.peer} sent what does not follow: {exc}.") from exc
            if was_in_doubt:
                self._roles.stepped_down(leader)
            taken = r.Taken(failover.position)
            # Before it is done: what is here will be done, whatever becomes of the primary, also if it does not hear.
            unheard = None
            try:
                if record.asks:
                    stream.send(encode(taken))
            except PeerError as exc:
                unheard = exc
            try:
                replica.follow(record, old, frame.body)
            except Exception as exc:
                self._roles.cannot_follow(exc)
                if isinstance(exc, TrainbandError):
                    raise
                raise ProtocolError(
                    f"{stream.peer} sent records that cannot be done here: {type(exc).__name__}: {exc}."
                ) from exc
            if failover.holds:
                self._roles.took_over(f"ps:{failover.other} has handed it over")
            if unheard is not None:
                raise unheard
        return taken

    def _fenced(self) -> r.Taken:
        failover = self._failover
        term = failover.term.number if failover.holds else 0
        return r.Taken(0, f"ps:{failover.me} is {failover.known_as.value} in term {failover.term.number}", term)
