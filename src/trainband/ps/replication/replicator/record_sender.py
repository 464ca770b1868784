"""RecordSender: the primary's end of the stream to the replica that takes its records."""

from __future__ import annotations

from collections.abc import Callable

from trainband.errors import PeerError, RefusalCode, Refused, StreamClosed
from trainband.ps.replication import snapshots
from trainband.ps.replication.failover import Fenced, Role
from trainband.ps.replication.replicator.other_replica import OtherReplica
from trainband.ps.replication.replicator.role_changes import RoleChanges
from trainband.ps.replication.replicator.state import ReplicatorState
from trainband.ps.replication.replicator.vote_requests import VoteRequests
from trainband.runtime.waiting import Waiting
from trainband.wire.frame import Frame
from trainband.wire.messages import replication as r
from trainband.wire.messages.codec import decode_any, encode
from trainband.wire.transport import Connection, Stream

WAIT_S = 0.2
"""Seconds between checks whether a wait for the standby is still needed."""


class RecordSender:
    """Sends a shard's records to its other replica, and takes its confirmations."""

    def __init__(self, state: ReplicatorState, other: OtherReplica, roles: RoleChanges, votes: VoteRequests) -> None:
        self._state = state
        self._replica = state.replica
        self._failover = state.failover
        self._lock = state.lock
        self._clock = state.clock
        self._other = other
        self._roles = roles
        self._votes = votes
        self.sending = state.runtime.lock()
        """Held by the thread that uses the stream."""
        self.connection: Connection | None = None
        """The connection of the stream."""
        self.stream: Stream | None = None
        """To the other replica, once it has accepted the records."""
        self._sent_at = state.clock()
        self._stuck: Waiting | None = None
        self._followed: Stream | None = None

    def settle(self, number: int, given_up: Callable[[], bool]) -> None:
        """Returns when everything up to a record may be acknowledged.

        Args:
          given_up: whether no worker waits for it.

        Raises:
          Refused: this ps no longer holds the shard.
          StreamClosed: it was given up.
        """
        while True:
            with self._lock:
                try:
                    if self._failover.settled(number):
                        return
                except Fenced:
                    raise Refused(f"another ps has taken {self._replica.name} over.", RefusalCode.MOVED) from None
            # The first thread sends for all that have come meanwhile.
            if self.stream is not None and self.sending.acquire(timeout=WAIT_S):
                try:
                    self.exchange(number)
                finally:
                    self.sending.release()
                continue
            if self._state.stopped or given_up():
                raise StreamClosed("no worker waits for this answer.")
            if self.stream is None:
                with self._lock:
                    self._state.changed.wait(WAIT_S)

    @property
    def is_due(self) -> bool:
        """Whether the other replica must hear from this one again, even without records."""
        return self._clock() - self._sent_at >= self._other.timeouts.heartbeat_s / 2

    def exchanged(self, *, asks: bool = False) -> bool:
        """Makes an exchange unless another thread is making one; returns whether it did."""
        if not self.sending.acquire(timeout=WAIT_S):
            if (stuck := self._stuck) is not None:  # in sending: no other thread reports it
                stuck.check(self._to_take(), "")
            return False
        try:
            self.exchange(asks=asks)
        finally:
            self.sending.release()
        return True

    def exchange(self, number: int | None = None, *, asks: bool = False) -> None:
        """Sends unsent records, and waits until the other replica has them. Called with `sending` held.

        Args:
          number: of the record to deliver; nothing is sent if it is settled.
          asks: whether the other replica must answer in any case.
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
            # On each stream the first frame asks: then the other replica knows the stream and applies all it carries.
            is_fresh = self._other.silent_s < self._other.timeouts.heartbeat_s
            asks |= not (
                records and stream.outlives_sender and stream is self._followed and failover.secure and is_fresh
            )
            header = r.Records(failover.lineage, failover.term.number, first, self._replica.version, records, asks)
        self._stuck = Waiting(None, self._state.say, self._clock)
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
                failover.confirmed(first + len(records) - 1, failover.term.arbiter)
                self._state.changed.notify_all()

    def _to_take(self) -> str:
        return f"ps:{self._failover.other} to take the records of {self._replica.name}"

    def _confirm(self, stream: Stream) -> None:
        """Waits for the other replica's confirmation, and records it."""
        timeouts = self._other.timeouts
        waiting = Waiting(timeouts.lease_s, self._state.say, self._clock)
        follower = self._failover.log.follower
        frame: Frame | None = None
        while frame is None:
            if self._state.stopped:
                raise StreamClosed("this ps is shutting down.")
            frame = stream.receive(timeouts.heartbeat_s)
            if frame is None:
                waiting.check(self._to_take(), "check that it runs")
        self._other.record_contact()
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
            self._failover.confirmed(taken.position, self._votes.next_arbiter())
            if self._failover.role is not Role.PRIMARY:
                self._roles.stepped_down(follower.incarnation)
                return
            if self._failover.secure:
                self._roles.has_standby()
            self._state.changed.notify_all()

    def install_snapshot(self, stream: Stream, incarnation: str) -> None:
        """Sends a snapshot, and waits until the other replica has it."""
        with self.sending:
            with self._lock:
                shard = self._replica.require_primary()
                install, body, snapshot = snapshots.take_snapshot(self._replica, incarnation)
            try:
                stream.send(encode(install), body)
            finally:
                del body
                with self._lock:
                    shard.release_snapshot(snapshot)
            self._roles.has_new_follower()
            self._confirm(stream)

    def lose(self, why: str, stream: Stream | None = None) -> None:
        """Drops the broken connection to the other replica; does nothing if `stream` was already replaced."""
        with self._lock:
            if stream is not None and stream is not self.stream:
                return
            unhooked = self._unhook()
            was = self._failover.log.follower
            self._failover.log.lost()  # before there can be another connection
            if was is not None and not self._state.stopped and not self._replica.is_deserted:
                self._state.say(f"{self._replica.name} has lost its standby ps:{self._failover.other}: {why}")
            self._state.changed.notify_all()
        _close(unhooked)
        self._state.wake.set()

    def hang_up(self) -> None:
        """Closes the connection to the other replica, if any."""
        _close(self._unhook())

    def _unhook(self) -> tuple[Stream | Connection | None, ...]:
        """Detaches and returns the connection to the other replica, to be closed."""
        unhooked = self.stream, self.connection
        self.stream = self.connection = None
        return unhooked


def _close(connections: tuple[Stream | Connection | None, ...]) -> None:
    for one in connections:
        if one is not None:
            one.close()
