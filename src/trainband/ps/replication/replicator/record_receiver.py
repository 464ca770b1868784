"""RecordReceiver: the standby's end of a primary's stream.

The standby has a record once it confirms it. On a stream that keeps what is sent (between two ps of one machine) it has
a record as soon as it is sent: it takes the shard over only once nothing more can be sent to it and it has applied all
that was. So no worker waits there for the standby's process to be scheduled.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from trainband.errors import PeerError, ProtocolError, Refused, StreamClosed, TrainbandError
from trainband.ps.replication import snapshots
from trainband.ps.replication.failover import Fenced, Role
from trainband.ps.replication.replicator.other_replica import OtherReplica
from trainband.ps.replication.replicator.role_changes import RoleChanges
from trainband.ps.replication.replicator.state import ReplicatorState
from trainband.wire.frame import Frame
from trainband.wire.messages import replication as r
from trainband.wire.messages.codec import decode_any, encode
from trainband.wire.transport import Stream


class RecordReceiver:
    """Applies the records that a shard's primary sends to this replica."""

    def __init__(self, state: ReplicatorState, other: OtherReplica, roles: RoleChanges) -> None:
        self._state = state
        self._replica = state.replica
        self._failover = state.failover
        self._lock = state.lock
        self._other = other
        self._roles = roles
        self._leading: Stream | None = None
        self._at_its_end: Callable[[], None] | None = None

    @property
    def is_led(self) -> bool:
        """Whether a primary's stream is open."""
        return self._leading is not None

    @property
    def moved_s(self) -> float:
        """Seconds since a part of a frame from the primary came; infinite if none is under way."""
        stream = self._leading
        return math.inf if stream is None else stream.moved_s

    def follow(self, stream: Stream, lead: r.ReplicationHello, stopped: Callable[[], bool]) -> None:
        """Serves a primary's stream until it ends."""
        other, state = self._other, self._state
        with self._lock:
            if lead.incarnation == other.primary[0] and lead.number < other.primary[1]:
                return  # it was given up for a newer one, which arrived first
            self._leading, other.primary = stream, (lead.incarnation, lead.number)
            self._at_its_end = None
            other.record_contact()
        is_empty = False
        try:
            while not (stopped() or state.stopped):
                frame = stream.receive(other.timeouts.heartbeat_s)
                if self._leading is not stream:
                    return  # the primary has opened another stream
                if frame is None:
                    continue
                other.record_contact()
                record = decode_any(frame.header, r.Upward, stream.peer)
                self._check_terms(record, lead.ps)
                taken = self._apply(record, frame, stream)
                if taken.fenced:
                    stream.send(encode(taken))
                    return
        except StreamClosed:
            is_empty = True  # all that was sent is applied
            raise
        except Exception as exc:
            with self._lock:
                follows = self._failover.role in (Role.STANDBY, Role.LEARNER)
                if self._leading is stream and stream.outlives_sender and follows:
                    self._roles.cannot_follow(exc)  # what is left in the stream counts as taken
            raise
        finally:
            with self._lock:
                self._ended(stream, takes_over=is_empty and not (stopped() or state.stopped))
            state.wake.set()

    def _ended(self, stream: Stream, *, takes_over: bool) -> None:
        if self._leading is not stream:
            return
        self._leading = None
        then, self._at_its_end = self._at_its_end, None
        try:
            if then is not None and takes_over:
                then()
        finally:
            self._state.changed.notify_all()

    def when_all_applied(self, then: Callable[[], None]) -> None:
        """Calls `then` once nothing more can be sent here and all that was is applied. Called under the lock.

        Calls it at once unless the stream keeps what is sent: its contents count as taken.
        """
        if self._leading is None or not self._leading.outlives_sender:
            then()
            return
        self._at_its_end = then
        self._leading.refuse_more()

    def await_all_applied(self) -> None:
        """Waits until the rest of a stream that the primary has given up is applied. Called under the lock.

        Raises:
          Refused: something is left after half a lease; the caller waits for a whole one.
        """
        keeps, lease_s = self._leading is not None and self._leading.outlives_sender, self._other.timeouts.lease_s
        if keeps and not self._state.changed.wait_for(lambda: self._leading is None, lease_s / 2):
            raise Refused(f"ps:{self._failover.me} has not yet applied all records of {self._replica.name}.")

    def _check_terms(self, record: r.Upward, primary: int) -> None:
        """Raises `ProtocolError` if a record gives the shard to a ps that has no replica of it."""
        if isinstance(record, r.InstallSnapshot):
            terms = [record.term]
        else:
            terms = [one for one in getattr(record, "records", ()) if isinstance(one, r.Term)]
        replicas = {primary, self._failover.me}
        for term in terms:
            for ps in {term.primary, term.standby} - replicas - ({r.NOBODY} if term.primary != r.NOBODY else set()):
                raise ProtocolError(f"ps:{primary} names ps:{ps}, which has no replica of {self._replica.name}.")

    def _apply(self, record: r.Upward, frame: Frame, stream: Stream) -> r.Taken:
        replica, failover = self._replica, self._failover
        with self._lock:
            if isinstance(record, r.InstallSnapshot):
                if replica.definition is None:
                    raise ProtocolError(
                        f"ps:{failover.me} was restarted and has not been invited to hold {replica.name} yet."
                    )
                if not failover.may_install(record.lineage, record.term.number):
                    return self._fenced()
                if failover.role is Role.PRIMARY:
                    self._roles.deposed(f"ps:{record.term.primary} has taken over")
                snapshots.install_snapshot(replica, record, frame.body)
                taken = r.Taken(failover.position)
                stream.send(encode(taken))
                return taken
            if not isinstance(record, r.Records):
                raise ProtocolError(f"{stream.peer} opened its stream twice.")
            was_in_doubt, primary = failover.in_doubt, self._other.primary[0]
            try:
                old = failover.receive(record.lineage, record.term, record.first, record.records, primary)
            except Fenced:
                return self._fenced()
            except ValueError as exc:
                self._roles.cannot_follow(exc)
                raise ProtocolError(f"{stream.peer} sent records out of order: {exc}.") from exc
            if was_in_doubt:
                self._roles.stepped_down(primary)
            taken = r.Taken(failover.position)
            # Before they are applied: records received are applied even if the primary dies or does not hear this.
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
                    f"{stream.peer} sent records that cannot be applied here: {type(exc).__name__}: {exc}."
                ) from exc
            if failover.holds:
                self._roles.took_over(f"ps:{failover.other} has returned it (failback)")
            if unheard is not None:
                raise unheard
        return taken

    def _fenced(self) -> r.Taken:
        failover = self._failover
        term = failover.term.number if failover.holds else 0
        return r.Taken(0, f"ps:{failover.me} is {failover.known_as.value} in term {failover.term.number}", term)
