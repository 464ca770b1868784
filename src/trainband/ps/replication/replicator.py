"""Replicator: the threads and sockets around a replica's failover.

On a primary it keeps the standby: finds it, teaches it, sends it the records. On a standby it watches the primary.

The standby has a record when it says so. On a stream that keeps what is sent (between two ps of one machine) it has it
as soon as it is sent: it takes the shard over only once nothing more can be sent to it and it has done all that was. So
no worker waits there for the standby's process to be given a processor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from trainband.errors import DeadlineExceeded, PeerError, ProtocolError, RefusalCode, Refused, StreamClosed, Unreachable
from trainband.ps.replication.failover import Fenced, Role
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.server.program import COMPILER
from trainband.runtime import SYSTEM, Lock, Runtime
from trainband.runtime.waiting import NOTICE_EVERY_S, Say, Waiting
from trainband.version import VERSION
from trainband.wire import messages as m
from trainband.wire import replication as r
from trainband.wire.codec import decode, decode_any, encode
from trainband.wire.transport import Connection, Frame, Stream, Timeouts

TICK_S = 0.1
"""Between two looks at the other replica."""

RETRY_S = 0.5
"""Between two attempts to find a standby where nobody waits for it."""

WAIT_S = 0.2
"""Between two looks whether a wait for the standby has become pointless."""

Connect = Callable[[int, Timeouts], Connection]
"""A new connection to the ps with this number."""


class Replicator:
    """Keeps one replica in step with the other.

    Args:
      replica: which.
      lock: the service's, which guards it.
      connect: the way to the other ps.
      arbiter: called under the lock with the present one and the other replica's host: who should decide.
      names: what a worker of this incarnation is called.
      heard_s: called under the lock: seconds since it was heard here.
      timeouts: how long to wait for what.
      say: where lines for people go.
      runtime: this task's.
    """

    def __init__(
        self,
        replica: ShardReplica,
        lock: Lock,
        *,
        connect: Connect,
        arbiter: Callable[[str, str], str],
        names: Callable[[str], str],
        heard_s: Callable[[str], float],
        timeouts: Timeouts,
        say: Say,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._replica = replica
        self._failover = replica.failover
        self._lock = lock
        self._connect = connect
        self._arbiter = arbiter
        self._names = names
        self._heard_s = heard_s
        self._timeouts = replace(timeouts, stall_s=timeouts.lease_s)
        self._say = say
        self._clock = runtime.clock
        self._changed = runtime.condition(lock)
        self._wake = runtime.event()
        self._sending = runtime.lock()
        self._stopped = False
        self._connection: Connection | None = None
        self._stream: Stream | None = None
        self._other_host = ""
        self._heard_at = runtime.clock()
        self._sent_at = runtime.clock()
        self._waiting: Waiting | None = None
        self._stuck: Waiting | None = None
        self._refusal = ""
        self._announced = False
        self._secure_since: float | None = None
        self._streams = count(1)
        self._followed: Stream | None = None
        self._leader = ("", 0)
        self._leading: Stream | None = None
        self._at_its_end: Callable[[], None] | None = None
        self._thread = runtime.thread(self._run, f"trainband-replica-{replica.number}")

    def start(self) -> None:
        """Begins, where it has not. Called under the lock."""
        if not self._thread.is_alive() and not self._stopped:
            self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Ends; called without the lock. Idempotent."""
        with self._lock:
            self._stopped = True
            self._changed.notify_all()
        self._wake.set()
        self._hang_up()  # which ends whatever the thread waits for
        if self._thread.is_alive():
            self._thread.join(grace_s)
        self._hang_up()

    def changed(self) -> None:
        """The replica has got another role, or a worker has come or gone. Called under the lock."""
        self._changed.notify_all()
        self._wake.set()

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
            if self._stream is not None and self._sending.acquire(timeout=WAIT_S):
                try:
                    self._exchange(number)
                finally:
                    self._sending.release()
                continue
            if self._stopped or given_up():
                raise StreamClosed("nobody waits for this answer any more.")
            if self._stream is None:
                with self._lock:
                    self._changed.wait(WAIT_S)

    def _other_state(self, ps: int) -> m.JobState:
        """What the other ps says of itself now.

        Raises:
          PeerError: it does not answer.
        """
        connection = self._connect(ps, self._timeouts)
        try:
            body = connection.call(f"state/{self._replica.number}", timeout_s=self._timeouts.heartbeat_s)
        finally:
            connection.close()
        return decode(body, m.JobState, f"ps:{ps}")

    # --- the primary's side

    def _run(self) -> None:
        while self._goes_on():
            role = self._failover.role
            try:
                if role is Role.PRIMARY:
                    self._lead()
                elif role in (Role.STANDBY, Role.LEARNER):
                    self._watch()
            except PeerError as exc:
                self._tell(f"{self._replica.name}: {exc}")
            except Exception as exc:  # a shard whose replicator has ended would never have a standby again
                self._tell(f"{self._replica.name}: {type(exc).__name__}: {exc}")

    def _goes_on(self) -> bool:
        """Waits for the next look at the other replica; returns whether there is to be one."""
        self._wake.wait(TICK_S)
        self._wake.clear()
        return not self._stopped

    def _lead(self) -> None:
        stream = self._stream
        if stream is not None and not stream.alive:
            self._lose(f"{stream.peer} is not there any more.", stream)
        failover = self._failover
        with self._lock:
            renames = (
                failover.secure and self._arbiter(failover.term.arbiter, self._other_host) != failover.term.arbiter
            )
        # One that is named while the standby is silent could not be asked, as long as that does not know of it.
        if renames and not self._exchanged(asks=True):
            return
        with self._lock:
            failover.name_arbiter(self._arbiter(failover.term.arbiter, self._other_host))
            unsent = failover.behind
        if self._stream is None or self._failover.follower is None:
            self._recruit()
            return
        if unsent or self._is_due:
            self._exchanged()
        if self._is_to_fail_back():
            self._fail_back()

    def _is_to_fail_back(self) -> bool:
        """Whether the shard is the other ps's own, which has been its standby for a lease by now."""
        if self._replica.number == self._failover.me or not (self._failover.holds and self._failover.secure):
            self._secure_since = None
            return False
        if self._secure_since is None:
            self._secure_since = self._clock()
        return self._clock() - self._secure_since >= self._timeouts.lease_s

    def _fail_back(self) -> None:
        """Gives the shard to the other ps, if that sees the same workers in the job, and nothing is under way."""
        replica, failover = self._replica, self._failover
        if not replica.may_fail_back:
            return
        self._secure_since = self._clock()  # if it comes to nothing, it is tried again after a lease
        there = self._other_state(failover.other)
        if not self._sending.acquire(timeout=WAIT_S):
            return
        try:
            self._exchange(asks=True)  # then it is there, and little is left to be sent
            with self._lock:
                if not (failover.holds and failover.secure and replica.may_fail_back and replica.sees_the_same(there)):
                    return
                replica.fail_back()
                self._changed.notify_all()
            self._say(f"ps:{failover.me} hands {replica.name} over to ps:{failover.other}, whose it is")
            self._exchange(asks=True)
        finally:
            self._sending.release()

    @property
    def _is_due(self) -> bool:
        """Whether the other replica must hear of this one again, even if there is nothing to be told."""
        return self._clock() - self._sent_at >= self._timeouts.heartbeat_s / 2

    def _exchanged(self, *, asks: bool = False) -> bool:
        """Makes an exchange, unless another thread is busy with one; returns whether it has."""
        if not self._sending.acquire(timeout=WAIT_S):
            if (stuck := self._stuck) is not None:  # in sending: nobody else would say so
                stuck.check(self._to_take(), "")
            return False
        try:
            self._exchange(asks=asks)
        finally:
            self._sending.release()
        return True

    def _exchange(self, number: int | None = None, *, asks: bool = False) -> None:
        """Sends what has not been sent, and waits until the other replica has it. Called with `_sending` held.

        Args:
          number: of the record that is to get there; nothing is sent if it has.
          asks: whether the other replica is to answer in any case.
        """
        stream, failover = self._stream, self._failover
        if stream is None:
            return
        with self._lock:
            follower = failover.follower
            if (
                failover.role is not Role.PRIMARY
                or follower is None
                or (number is not None and failover.settled(number))
            ):
                return
            first, entries = failover.unsent()
            records = tuple(record for record, _ in entries)
            if number is None and not (records or asks or self._is_due):
                return  # another thread has sent them meanwhile
            # On each stream the first frame asks: then the other replica knows of it, and does all that comes on it.
            is_fresh = self._clock() - self._heard_at < self._timeouts.heartbeat_s
            asks |= not (records and stream.keeps and stream is self._followed and failover.secure and is_fresh)
            header = r.Records(failover.lineage, failover.term.number, first, self._replica.version, records, asks)
        self._stuck = Waiting(None, self._say, self._clock)
        try:
            stream.send(encode(header), [block for _, blocks in entries for block in blocks])
            self._sent_at = self._clock()
            self._stuck = None
            if asks:
                self._confirm(stream)
                return
        except PeerError as exc:
            self._lose(str(exc), stream)
            return
        finally:
            self._stuck = None
        with self._lock:
            if failover.follower is follower:
                failover.taken(first + len(records) - 1, failover.term.arbiter)
                self._changed.notify_all()

    def _to_take(self) -> str:
        return f"ps:{self._failover.other} to take the records of {self._replica.name}"

    def _confirm(self, stream: Stream) -> None:
        """Waits for the other replica's word, and notes it."""
        patience = Waiting(self._timeouts.lease_s, self._say, self._clock)
        follower = self._failover.follower
        frame: Frame | None = None
        while frame is None:
            if self._stopped:
                raise StreamClosed("this ps ends.")
            frame = stream.receive(self._timeouts.heartbeat_s)
            if frame is None:
                patience.check(self._to_take(), "check that it runs")
        self._heard_at = self._clock()
        self._followed = stream
        taken = decode_any(frame.header, r.Taken, stream.peer)
        with self._lock:
            if follower is None or self._failover.follower is not follower:
                return  # meanwhile another term has begun
            if taken.fenced:
                try:
                    self._failover.refused(taken.term)
                except Fenced:
                    self._deposed(taken.fenced)
                    return
                raise StreamClosed(taken.fenced)  # it gets a new snapshot
            self._failover.taken(taken.position, self._arbiter(self._failover.term.arbiter, self._other_host))
            if self._failover.role is not Role.PRIMARY:
                self._stepped_down(follower.incarnation)
                return
            if self._failover.secure and not self._announced:
                self._announced = True
                self._say(f"ps:{self._failover.other} is the standby of {self._replica.name}")
            self._changed.notify_all()

    def _stepped_down(self, successor: str) -> None:
        """The other replica has taken what this one has handed over, and will come. Called under the lock."""
        self._heard_at = self._clock()
        self._announced = False
        self._leader = (successor, 0)
        self._changed.notify_all()

    def _deposed(self, why: str) -> None:
        self._say(f"ps:{self._failover.me} does not hold {self._replica.name} any more: {why}")
        self._failover.step_down()
        self._replica.forget()
        self._announced = False
        self._changed.notify_all()

    def _lose(self, why: str, stream: Stream | None = None) -> None:
        """The connection to the other replica is gone; if a stream is given, unless there is another one by now."""
        with self._lock:
            if stream is not None and stream is not self._stream:
                return
            unhooked = self._unhook()
            was = self._failover.follower
            self._failover.lost()  # before there can be another connection
            if was is not None and not self._stopped and not self._replica.deserted:
                self._say(f"{self._replica.name} has lost ps:{self._failover.other}, its standby: {why}")
            self._changed.notify_all()
        _close(unhooked)
        self._wake.set()

    def _recruit(self) -> None:
        """Tries to get the other replica to take the records, from where it is or from the beginning."""
        replica, failover = self._replica, self._failover
        self._secure_since = None
        if failover.lacks_standby:
            self._waiting = self._waiting or Waiting(None, self._say, self._clock)
            decides = f", or {self._arbiter_name()} to let ps:{failover.me} go on alone"
            self._waiting.check(f"ps:{failover.other}, the standby of {replica.name}, to come back{decides}", "")
            if self._clock() - self._heard_at >= self._timeouts.lease_s:
                self._ask()
        else:
            self._waiting = None
        with self._lock:
            assert replica.define is not None
            invite = m.Invite(replica.state(), replica.define, VERSION, COMPILER)
        try:
            self._hang_up()
            self._other_state(failover.other)  # one that cannot be reached is not waited for as one that compiles
            self._connection = connection = self._connect(failover.other, self._timeouts)
            answer = connection.call(f"invite/{replica.number}", encode(invite), timeout_s=self._timeouts.lease_s)
            other = decode(answer, r.ReplicaState, f"ps:{failover.other}")
        except (Unreachable, DeadlineExceeded) as exc:
            if failover.lacks_standby and isinstance(exc, Unreachable):
                self._ask()
            elif not failover.lacks_standby:
                self._wake.wait(RETRY_S)
            return
        except Refused as exc:
            self._tell(f"WARNING: {replica.name} has no standby: {exc}")
            self._wake.wait(NOTICE_EVERY_S)
            return
        self._other_host = other.host
        with self._lock:
            if failover.role is not Role.PRIMARY:
                return
            was_in_doubt = failover.in_doubt
            try:
                at = failover.meet(
                    Role(other.role), other.lineage, other.term.number, other.position, other.incarnation
                )
            except Fenced:
                self._deposed(f"ps:{other.ps} has taken it over")
                return
            finally:
                self._changed.notify_all()
            if not (failover.holds or failover.in_doubt):
                self._stepped_down(other.incarnation)
                return
            if was_in_doubt and failover.holds:
                self._took_over("the process that it was handed to has died")
        try:
            stream = connection.open_stream(timeout_s=self._timeouts.connect_s)
            stream.send(
                encode(r.ReplicationHello(replica.number, failover.me, invite.replica.incarnation, next(self._streams)))
            )
            if at is None:
                self._install_snapshot(stream, other.incarnation)
            self._stream = stream
            self._wake.set()  # somebody may wait for what it is to be sent
        except PeerError as exc:
            self._lose(str(exc))

    def _install_snapshot(self, stream: Stream, incarnation: str) -> None:
        with self._sending:
            with self._lock:
                shard = self._replica.require_primary().shard
                install, body, snapshot = self._replica.snapshot_for(incarnation)
            try:
                stream.send(encode(install), body)
            finally:
                del body
                with self._lock:
                    shard.release_snapshot(snapshot)
            self._announced = False
            self._confirm(stream)

    def _ask(self) -> None:
        """Asks the arbiter, if there is somebody to replace.

        Not while the arbiter is not heard here: then it is this ps that is cut off, and when it is back it shall first
        look whether the other replica is.
        """
        with self._lock:
            if self._heard_s(self._failover.term.arbiter) > self._timeouts.lease_s / 2:
                return
            if self._failover.role is Role.STANDBY or self._failover.lacks_standby:
                self._failover.ask()

    def _arbiter_name(self) -> str:
        return self._names(self._failover.term.arbiter)

    def _hang_up(self) -> None:
        _close(self._unhook())

    def _unhook(self) -> tuple[Stream | Connection | None, ...]:
        """What was the connection to the other replica, which is to be closed."""
        unhooked = self._stream, self._connection
        self._stream = self._connection = None
        return unhooked

    def _tell(self, text: str) -> None:
        """Says what goes wrong, once for as long as it is the same."""
        if text != self._refusal:
            self._refusal = text
            self._say(text)

    # --- the other side

    def follow(self, stream: Stream, lead: r.ReplicationHello, stopped: Callable[[], bool]) -> None:
        """Serves a primary's stream, until it ends."""
        with self._lock:
            if lead.incarnation == self._leader[0] and lead.number < self._leader[1]:
                return  # it was given up for another, which has come first
            self._leading, self._leader = stream, (lead.incarnation, lead.number)
            self._at_its_end = None
            self._heard_at = self._clock()
        is_empty = False
        try:
            while not (stopped() or self._stopped):
                frame = stream.receive(self._timeouts.heartbeat_s)
                if self._leading is not stream:
                    return  # it has come again, on another stream
                if frame is None:
                    continue
                self._heard_at = self._clock()
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
                    self._cannot_follow(exc)  # what is left in the stream counts as taken
            raise
        finally:
            with self._lock:
                self._ended(stream, takes_over=is_empty and not (stopped() or self._stopped))
            self._wake.set()

    def _ended(self, stream: Stream, *, takes_over: bool) -> None:
        if self._leading is not stream:
            return
        self._leading = None
        then, self._at_its_end = self._at_its_end, None
        try:
            if then is not None and takes_over:
                then()
        finally:
            self._changed.notify_all()

    def _when_all_is_taken(self, then: Callable[[], None]) -> None:
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
        keeps = self._leading is not None and self._leading.keeps
        if keeps and not self._changed.wait_for(lambda: self._leading is None, self._timeouts.lease_s / 2):
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
                    self._deposed(f"ps:{record.term.primary} has taken it over")
                replica.install_snapshot(record, frame.body)
                taken = r.Taken(failover.position)
                stream.send(encode(taken))
                return taken
            if not isinstance(record, r.Records):
                raise ProtocolError(f"{stream.peer} opened its stream twice.")
            was_in_doubt, leader = failover.in_doubt, self._leader[0]
            try:
                old = failover.take(record.lineage, record.term, record.first, record.records, leader)
            except Fenced:
                return self._fenced()
            except ValueError as exc:
                self._cannot_follow(exc)
                raise
            if was_in_doubt:
                self._stepped_down(leader)
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
                self._cannot_follow(exc)
                raise
            if failover.holds:
                self._took_over(f"ps:{failover.other} has handed it over")
            if unheard is not None:
                raise unheard
        return taken

    def _cannot_follow(self, exc: Exception) -> None:
        self._say(f"ps:{self._failover.me} cannot follow {self._replica.name}: {exc}")
        self._failover.step_down()
        self._replica.forget()

    def _fenced(self) -> r.Taken:
        failover = self._failover
        term = failover.term.number if failover.holds else 0
        return r.Taken(0, f"ps:{failover.me} is {failover.known_as.value} in term {failover.term.number}", term)

    def _watch(self) -> None:
        """Looks whether the primary lives."""
        replica, failover = self._replica, self._failover
        self._hang_up()  # of a replica that has handed over
        silent_s = self._clock() - self._heard_at
        if (self._leading is not None and silent_s < self._timeouts.lease_s) or replica.deserted:
            self._waiting = None
            return
        if failover.role is Role.LEARNER:
            with self._lock:
                failover.step_down()
                replica.forget()
            return
        self._waiting = self._waiting or Waiting(None, self._say, self._clock)
        if silent_s >= self._timeouts.lease_s:
            self._ask()
        primary = failover.term.primary
        decides = f"{self._arbiter_name()} to let ps:{failover.me} take over"
        self._waiting.check(f"ps:{primary}, which holds {replica.name}, to come back, or {decides}", "")
        asked_at, replicas = self._clock(), None
        try:
            replicas = self._other_state(primary).replicas
        except Unreachable:
            pass  # if it is not heard either, the arbiter decides
        except PeerError:
            return
        if self._heard_at >= asked_at:
            return  # it has come back meanwhile: the answer is of before
        if replicas is None:
            self._ask()
            return
        found = next((one for one in replicas if one.shard == replica.number), None)
        if found is None or found.incarnation != self._leader[0]:
            self.succeed("the process that held it has died", asked_at)
        elif found.role != Role.PRIMARY.value:
            self._ask()

    def succeed(self, why: str, asked_at: float) -> None:
        """Takes the shard over, because nobody else can hold it; unless another was heard since this moment."""

        def take_over() -> None:
            if self._failover.role is Role.STANDBY and self._failover.lead_alone():
                self._took_over(why)

        with self._lock:
            if self._heard_at < asked_at:
                self._when_all_is_taken(take_over)

    def granted(self, term: int, yes: bool, by: str) -> None:
        """The arbiter's word. Called under the lock."""
        failover = self._failover
        if not term or failover.vote_request != term:
            return
        if not yes:
            failover.granted(term, yes)  # the other ps goes on, and says so itself
        elif failover.holds:
            failover.granted(term, yes)
            self._say(f"ps:{failover.me} goes on with {self._replica.name} alone: so {by} has decided")
            self._changed.notify_all()
        else:
            self._when_all_is_taken(lambda: self._accept(term, by))

    def _accept(self, term: int, by: str) -> None:
        if self._failover.granted(term, yes=True):  # else what was taken meanwhile has changed whom to ask
            self._took_over(f"so {by} has decided")

    def _took_over(self, why: str) -> None:
        replica, failover = self._replica, self._failover
        self._waiting = None
        replica.held_since = self._clock()
        replica.take_over()
        self._say(
            f"ps:{failover.me} takes {replica.name} over at version {replica.version:,} "
            f"(term {failover.term.number}): {why}"
        )
        self._changed.notify_all()
        self._wake.set()


def _close(connections: tuple[Stream | Connection | None, ...]) -> None:
    for one in connections:
        if one is not None:
            one.close()
