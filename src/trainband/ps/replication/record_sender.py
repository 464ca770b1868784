"""RecordSender: the primary's end of the stream to the replica that takes its records."""

from __future__ import annotations

from collections.abc import Callable

from trainband.errors import PeerError, RefusalCode, Refused, StreamClosed
from trainband.ps.replication.failover import Fenced, Role
from trainband.ps.replication.notices import Notices
from trainband.ps.replication.other_replica import OtherReplica
from trainband.ps.replication.role_changes import RoleChanges
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.replication.votes import Votes
from trainband.ps.replication.wakeups import Wakeups
from trainband.runtime import Runtime
from trainband.runtime.waiting import Waiting
from trainband.wire import replication as r
from trainband.wire.codec import decode_any, encode
from trainband.wire.transport import Connection, Frame, Stream

WAIT_S = 0.2
"""Between two looks whether a wait for the standby has become pointless."""


class RecordSender:
    """Sends what changes a shard to its other replica, and hears what that has.

    Args:
      replica: whose records.
      other: the one that takes them.
      wakeups: who is woken up when it has them.
      notices: who is told.
      roles: what is done when this replica gets another role.
      votes: who is named to decide.
      runtime: this task's.
    """

    def __init__(
        self,
        replica: ShardReplica,
        other: OtherReplica,
        wakeups: Wakeups,
        notices: Notices,
        roles: RoleChanges,
        votes: Votes,
        runtime: Runtime,
    ) -> None:
        self._replica = replica
        self._failover = replica.failover
        self._other = other
        self._wakeups = wakeups
        self._lock = wakeups.lock
        self._changed = wakeups.changed
        self._notices = notices
        self._roles = roles
        self._votes = votes
        self._clock = runtime.clock
        self.sending = runtime.lock()
        """Held by the thread that uses the stream."""
        self.connection: Connection | None = None
        """That of the stream."""
        self.stream: Stream | None = None
        """To the other replica, once it has agreed to take the records."""
        self._sent_at = runtime.clock()
        self._stuck: Waiting | None = None
        self._followed: Stream | None = None

    def settle(self, number: int, given_up: Callable[[], bool]) -> None:
        """Returns when everything up to a record may be acknowledged.

        Args:
          number: of the record.
          given_up: whether nobody waits for it any more.

        Raises:
          Refused: this ps does not hold the shard any more.
          StreamClosed: it was given up.
        """
        while True:
            with self._lock:
                try:
                    if self._failover.settled(number):
                        return
                except Fenced:
                    raise Refused(f"another ps has taken {self._replica.name} over.", RefusalCode.MOVED) from None
            # Whoever comes first sends for all that have come meanwhile.
            if self.stream is not None and self.sending.acquire(timeout=WAIT_S):
                try:
                    self.exchange(number)
                finally:
                    self.sending.release()
                continue
            if self._wakeups.stopped or given_up():
                raise StreamClosed("nobody waits for this answer any more.")
            if self.stream is None:
                with self._lock:
                    self._changed.wait(WAIT_S)

    @property
    def is_due(self) -> bool:
        """Whether the other replica must hear of this one again, even if there is nothing to be told."""
        return self._clock() - self._sent_at >= self._other.timeouts.heartbeat_s / 2

    def exchanged(self, *, asks: bool = False) -> bool:
        """Makes an exchange, unless another thread is busy with one; returns whether it has."""
        if not self.sending.acquire(timeout=WAIT_S):
            if (stuck := self._stuck) is not None:  # in sending: nobody else would say so
                stuck.check(self._to_take(), "")
            return False
        try:
            self.exchange(asks=asks)
        finally:
            self.sending.release()
        return True

    def exchange(self, number: int | None = None, *, asks: bool = False) -> None:
        """Sends what has not been sent, and waits until the other replica has it. Called with `sending` held.

        Args:
          number: of the record that is to get there; nothing is sent if it has.
          asks: whether the other replica is to answer in any case.
        """
        stream, failover = self.stream, self._failover
        if stream is None:
            return
        with self._lock:
            follower = failover.log.follower
            if (
                failover.role is not Role.PRIMARY
                or follower is None
                or (number is not None and failover.settled(number))
            ):
                return
            first, entries = failover.log.unsent()
            records = tuple(record for record, _ in entries)
            if number is None and not (records or asks or self.is_due):
                return  # another thread has sent them meanwhile
            # On each stream the first frame asks: then the other replica knows of it, and does all that comes on it.
            is_fresh = self._other.silent_s < self._other.timeouts.heartbeat_s
            asks |= not (records and stream.keeps and stream is self._followed and failover.secure and is_fresh)
            header = r.Records(failover.lineage, failover.term.number, first, self._replica.version, records, asks)
        self._stuck = Waiting(None, self._notices.say, self._clock)
        try:
            stream.send(encode(header), [block for _, blocks in entries for block in blocks])
            self._sent_at = self._clock()
            self._stuck = None
            if asks:
                self._confirm(stream)
                return
        except PeerError as exc:
            self.lose(str(exc), stream)
            return
        finally:
            self._stuck = None
        with self._lock:
            if failover.log.follower is follower:
                failover.taken(first + len(records) - 1, failover.term.arbiter)
                self._changed.notify_all()

    def _to_take(self) -> str:
        return f"ps:{self._failover.other} to take the records of {self._replica.name}"

    def _confirm(self, stream: Stream) -> None:
        """Waits for the other replica's word, and notes it."""
        timeouts = self._other.timeouts
        waiting = Waiting(timeouts.lease_s, self._notices.say, self._clock)
        follower = self._failover.log.follower
        frame: Frame | None = None
        while frame is None:
            if self._wakeups.stopped:
                raise StreamClosed("this ps ends.")
            frame = stream.receive(timeouts.heartbeat_s)
            if frame is None:
                waiting.check(self._to_take(), "check that it runs")
        self._other.heard()
        self._followed = stream
        taken = decode_any(frame.header, r.Taken, stream.peer)
        with self._lock:
            if follower is None or self._failover.log.follower is not follower:
                return  # meanwhile another term has begun
            if taken.fenced:
                try:
                    self._failover.refused(taken.term)
                except Fenced:
                    self._roles.deposed(taken.fenced)
                    return
                raise StreamClosed(taken.fenced)  # it gets a new snapshot
            self._failover.taken(taken.position, self._votes.next_arbiter())
            if self._failover.role is not Role.PRIMARY:
                self._roles.stepped_down(follower.incarnation)
                return
            if self._failover.secure:
                self._roles.has_standby()
            self._changed.notify_all()

    def install_snapshot(self, stream: Stream, incarnation: str) -> None:
        """Sends everything as it now is, and waits until the other replica has it."""
        with self.sending:
            with self._lock:
                shard = self._replica.require_primary().shard
                install, body, snapshot = self._replica.snapshot_for(incarnation)
            try:
                stream.send(encode(install), body)
            finally:
                del body
                with self._lock:
                    shard.release_snapshot(snapshot)
            self._roles.has_new_follower()
            self._confirm(stream)

    def lose(self, why: str, stream: Stream | None = None) -> None:
        """The connection to the other replica is gone; if a stream is given, unless there is another one by now."""
        with self._lock:
            if stream is not None and stream is not self.stream:
                return
            unhooked = self._unhook()
            was = self._failover.log.follower
            self._failover.log.lost()  # before there can be another connection
            if was is not None and not self._wakeups.stopped and not self._replica.deserted:
                self._notices.say(f"{self._replica.name} has lost ps:{self._failover.other}, its standby: {why}")
            self._changed.notify_all()
        _close(unhooked)
        self._wakeups.wake.set()

    def hang_up(self) -> None:
        """Closes the connection to the other replica, where there is one."""
        _close(self._unhook())

    def _unhook(self) -> tuple[Stream | Connection | None, ...]:
        """What was the connection to the other replica, which is to be closed."""
        unhooked = self.stream, self.connection
        self.stream = self.connection = None
        return unhooked


def _close(connections: tuple[Stream | Connection | None, ...]) -> None:
    for one in connections:
        if one is not None:
            one.close()
