"""Keeper: the threads and sockets around a seat's succession.

On a primary it keeps the standby: finds it, teaches it, sends it the records. On a standby it watches the primary.

The standby has a record when it says so. On a stream that keeps what is sent (between two ps of one machine) it has it
as soon as it is sent: it takes the shard over only once nothing more can be sent to it and it has done all that was. So
no worker waits there for the standby's process to be given a processor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from trainband.errors import DeadlineExceeded, PeerError, ProtocolError, Refused, StreamClosed, Unreachable
from trainband.ps.program import COMPILER
from trainband.ps.seat import Seat
from trainband.ps.succession import Fenced, Role
from trainband.runtime import SYSTEM, Lock, Runtime
from trainband.runtime.waiting import NOTICE_EVERY_S, Say, Waiting
from trainband.version import VERSION
from trainband.wire import messages as m
from trainband.wire import replication as r
from trainband.wire.codec import decode, decode_any, encode
from trainband.wire.transport import Connection, Frame, Stream, Timeouts

TICK_S = 0.1
"""Between two looks at the other seat."""

RETRY_S = 0.5
"""Between two attempts to find a standby where nobody waits for it."""

WAIT_S = 0.2
"""Between two looks whether a wait for the standby has become pointless."""

Connect = Callable[[int, Timeouts], Connection]
"""A new connection to the ps with this number."""


class Keeper:
    """Keeps one seat in step with the other.

    Args:
      seat: which.
      lock: the service's, which guards it.
      connect: the way to the other ps.
      arbiter: called under the lock with the present one and the other seat's host: who should decide.
      names: what a worker of this incarnation is called.
      heard_s: called under the lock: seconds since it was heard here.
      timeouts: how long to wait for what.
      say: where lines for people go.
      runtime: this task's.
    """

    def __init__(
        self,
        seat: Seat,
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
        self._seat = seat
        self._book = seat.book
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
        self._thread = runtime.thread(self._run, f"trainband-seat-{seat.number}")

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
        """The seat has got another role, or a worker has come or gone. Called under the lock."""
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
                    if self._book.settled(number):
                        return
                except Fenced:
                    raise Refused(f"{m.MOVED}another ps has taken {self._seat.name} over.") from None
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
            body = connection.call(f"state/{self._seat.number}", timeout_s=self._timeouts.heartbeat_s)
        finally:
            connection.close()
        return decode(body, m.JobState, f"ps:{ps}")

    # --- the primary's side

    def _run(self) -> None:
        while self._goes_on():
            role = self._book.role
            try:
                if role is Role.PRIMARY:
                    self._lead()
                elif role in (Role.STANDBY, Role.LEARNER):
                    self._watch()
            except PeerError as exc:
                self._tell(f"{self._seat.name}: {exc}")
            except Exception as exc:  # a shard whose keeper has ended would never have a standby again
                self._tell(f"{self._seat.name}: {type(exc).__name__}: {exc}")

    def _goes_on(self) -> bool:
        """Waits for the next look at the other seat; returns whether there is to be one."""
        self._wake.wait(TICK_S)
        self._wake.clear()
        return not self._stopped

    def _lead(self) -> None:
        stream = self._stream
        if stream is not None and not stream.alive:
            self._lose(f"{stream.peer} is not there any more.", stream)
        book = self._book
        with self._lock:
            renames = book.secure and self._arbiter(book.reign.arbiter, self._other_host) != book.reign.arbiter
        # One that is named while the standby is silent could not be asked, as long as that does not know of it.
        if renames and not self._exchanged(asks=True):
            return
        with self._lock:
            book.name_arbiter(self._arbiter(book.reign.arbiter, self._other_host))
            unsent = book.behind
        if self._stream is None or self._book.pupil is None:
            self._recruit()
            return
        if unsent or self._is_due:
            self._exchanged()
        if self._is_to_go_home():
            self._hand_over()

    def _is_to_go_home(self) -> bool:
        """Whether the shard is the other ps's own, which has been its standby for a lease by now."""
        if self._seat.number == self._book.me or not (self._book.holds and self._book.secure):
            self._secure_since = None
            return False
        if self._secure_since is None:
            self._secure_since = self._clock()
        return self._clock() - self._secure_since >= self._timeouts.lease_s

    def _hand_over(self) -> None:
        """Gives the shard to the other ps, if that sees the same workers in the job, and nothing is under way."""
        seat, book = self._seat, self._book
        if not seat.may_move:
            return
        self._secure_since = self._clock()  # if it comes to nothing, it is tried again after a lease
        there = self._other_state(book.other)
        if not self._sending.acquire(timeout=WAIT_S):
            return
        try:
            self._exchange(asks=True)  # then it is there, and little is left to be sent
            with self._lock:
                if not (book.holds and book.secure and seat.may_move and seat.sees_the_same(there)):
                    return
                seat.hand_over()
                self._changed.notify_all()
            self._say(f"ps:{book.me} hands {seat.name} over to ps:{book.other}, whose it is")
            self._exchange(asks=True)
        finally:
            self._sending.release()

    @property
    def _is_due(self) -> bool:
        """Whether the other seat must hear of this one again, even if there is nothing to be told."""
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
        """Sends what has not been sent, and waits until the other seat has it. Called with `_sending` held.

        Args:
          number: of the record that is to get there; nothing is sent if it has.
          asks: whether the other seat is to answer in any case.
        """
        stream, book = self._stream, self._book
        if stream is None:
            return
        with self._lock:
            pupil = book.pupil
            if book.role is not Role.PRIMARY or pupil is None or (number is not None and book.settled(number)):
                return
            first, entries = book.unsent()
            records = tuple(record for record, _ in entries)
            if number is None and not (records or asks or self._is_due):
                return  # another thread has sent them meanwhile
            # On each stream the first frame asks: then the other seat knows of it, and does all that comes on it.
            is_fresh = self._clock() - self._heard_at < self._timeouts.heartbeat_s
            asks |= not (records and stream.keeps and stream is self._followed and book.secure and is_fresh)
            header = r.Records(book.lineage, book.reign.epoch, first, self._seat.version, records, asks)
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
            if book.pupil is pupil:
                book.taken(first + len(records) - 1, book.reign.arbiter)
                self._changed.notify_all()

    def _to_take(self) -> str:
        return f"ps:{self._book.other} to take the records of {self._seat.name}"

    def _confirm(self, stream: Stream) -> None:
        """Waits for the other seat's word, and notes it."""
        patience = Waiting(self._timeouts.lease_s, self._say, self._clock)
        pupil = self._book.pupil
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
            if pupil is None or self._book.pupil is not pupil:
                return  # meanwhile another reign has begun
            if taken.fenced:
                try:
                    self._book.refused(taken.epoch)
                except Fenced:
                    self._deposed(taken.fenced)
                    return
                raise StreamClosed(taken.fenced)  # it is taught anew
            self._book.taken(taken.position, self._arbiter(self._book.reign.arbiter, self._other_host))
            if self._book.role is not Role.PRIMARY:
                self._stepped_down(pupil.incarnation)
                return
            if self._book.secure and not self._announced:
                self._announced = True
                self._say(f"ps:{self._book.other} is the standby of {self._seat.name}")
            self._changed.notify_all()

    def _stepped_down(self, successor: str) -> None:
        """The other seat has taken what this one has handed over, and will come. Called under the lock."""
        self._heard_at = self._clock()
        self._announced = False
        self._leader = (successor, 0)
        self._changed.notify_all()

    def _deposed(self, why: str) -> None:
        self._say(f"ps:{self._book.me} does not hold {self._seat.name} any more: {why}")
        self._book.abdicate()
        self._seat.forget()
        self._announced = False
        self._changed.notify_all()

    def _lose(self, why: str, stream: Stream | None = None) -> None:
        """The connection to the other seat is gone; if a stream is given, unless there is another one by now."""
        with self._lock:
            if stream is not None and stream is not self._stream:
                return
            unhooked = self._unhook()
            was = self._book.pupil
            self._book.lost()  # before there can be another connection
            if was is not None and not self._stopped and not self._seat.deserted:
                self._say(f"{self._seat.name} has lost ps:{self._book.other}, its standby: {why}")
            self._changed.notify_all()
        _close(unhooked)
        self._wake.set()

    def _recruit(self) -> None:
        """Tries to get the other seat to take the records, from where it is or from the beginning."""
        seat, book = self._seat, self._book
        self._secure_since = None
        if book.bereft:
            self._waiting = self._waiting or Waiting(None, self._say, self._clock)
            decides = f", or {self._arbiter_name()} to let ps:{book.me} go on alone"
            self._waiting.check(f"ps:{book.other}, the standby of {seat.name}, to come back{decides}", "")
            if self._clock() - self._heard_at >= self._timeouts.lease_s:
                self._ask()
        else:
            self._waiting = None
        with self._lock:
            assert seat.define is not None
            invite = m.Invite(seat.state(), seat.define, VERSION, COMPILER)
        try:
            self._hang_up()
            self._other_state(book.other)  # one that cannot be reached is not waited for as one that compiles
            self._connection = connection = self._connect(book.other, self._timeouts)
            answer = connection.call(f"invite/{seat.number}", encode(invite), timeout_s=self._timeouts.lease_s)
            other = decode(answer, r.SeatState, f"ps:{book.other}")
        except (Unreachable, DeadlineExceeded) as exc:
            if book.bereft and isinstance(exc, Unreachable):
                self._ask()
            elif not book.bereft:
                self._wake.wait(RETRY_S)
            return
        except Refused as exc:
            self._tell(f"WARNING: {seat.name} has no standby: {exc}")
            self._wake.wait(NOTICE_EVERY_S)
            return
        self._other_host = other.host
        with self._lock:
            if book.role is not Role.PRIMARY:
                return
            was_in_doubt = book.in_doubt
            try:
                at = book.meet(Role(other.role), other.lineage, other.reign.epoch, other.position, other.incarnation)
            except Fenced:
                self._deposed(f"ps:{other.seat} has taken it over")
                return
            finally:
                self._changed.notify_all()
            if not (book.holds or book.in_doubt):
                self._stepped_down(other.incarnation)
                return
            if was_in_doubt and book.holds:
                self._took_over("the process that it was handed to has died")
        try:
            stream = connection.open_stream(timeout_s=self._timeouts.connect_s)
            stream.send(encode(r.Lead(seat.number, book.me, invite.seat.incarnation, next(self._streams))))
            if at is None:
                self._teach(stream, other.incarnation)
            self._stream = stream
            self._wake.set()  # somebody may wait for what it is to be sent
        except PeerError as exc:
            self._lose(str(exc))

    def _teach(self, stream: Stream, incarnation: str) -> None:
        with self._sending:
            with self._lock:
                shard = self._seat.require_primary().shard
                lesson, body, snapshot = self._seat.lesson(incarnation)
            try:
                stream.send(encode(lesson), body)
            finally:
                del body
                with self._lock:
                    shard.release_snapshot(snapshot)
            self._announced = False
            self._confirm(stream)

    def _ask(self) -> None:
        """Asks the arbiter, if there is somebody to replace.

        Not while the arbiter is not heard here: then it is this ps that is cut off, and when it is back it shall first
        look whether the other seat is.
        """
        with self._lock:
            if self._heard_s(self._book.reign.arbiter) > self._timeouts.lease_s / 2:
                return
            if self._book.role is Role.STANDBY or self._book.bereft:
                self._book.ask()

    def _arbiter_name(self) -> str:
        return self._names(self._book.reign.arbiter)

    def _hang_up(self) -> None:
        _close(self._unhook())

    def _unhook(self) -> tuple[Stream | Connection | None, ...]:
        """What was the connection to the other seat, which is to be closed."""
        unhooked = self._stream, self._connection
        self._stream = self._connection = None
        return unhooked

    def _tell(self, text: str) -> None:
        """Says what goes wrong, once for as long as it is the same."""
        if text != self._refusal:
            self._refusal = text
            self._say(text)

    # --- the other side

    def follow(self, stream: Stream, lead: r.Lead, stopped: Callable[[], bool]) -> None:
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
                follows = self._book.role in (Role.STANDBY, Role.LEARNER)
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
        """Does this once no more can be sent to this seat, and what was sent is done. Called under the lock.

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
            raise Refused(f"ps:{self._book.me} has not done yet all that it was sent for {self._seat.name}.")

    def _taken(self, record: r.Upward, frame: Frame, stream: Stream) -> r.Taken:
        seat, book = self._seat, self._book
        with self._lock:
            if isinstance(record, r.Lesson):
                if seat.define is None:
                    raise ProtocolError(f"ps:{book.me} has come since, and was not asked to hold {seat.name} yet.")
                if not book.may_learn(record.lineage, record.reign.epoch):
                    return self._fenced()
                if book.role is Role.PRIMARY:
                    self._deposed(f"ps:{record.reign.primary} has taken it over")
                seat.learn(record, frame.body)
                taken = r.Taken(book.position)
                stream.send(encode(taken))
                return taken
            if not isinstance(record, r.Records):
                raise ProtocolError(f"{stream.peer} opened its stream twice.")
            was_in_doubt, leader = book.in_doubt, self._leader[0]
            try:
                old = book.take(record.lineage, record.epoch, record.first, record.records, leader)
            except Fenced:
                return self._fenced()
            except ValueError as exc:
                self._cannot_follow(exc)
                raise
            if was_in_doubt:
                self._stepped_down(leader)
            taken = r.Taken(book.position)
            # Before it is done: what is here will be done, whatever becomes of the primary, also if it does not hear.
            unheard = None
            try:
                if record.asks:
                    stream.send(encode(taken))
            except PeerError as exc:
                unheard = exc
            try:
                seat.follow(record, old, frame.body)
            except Exception as exc:
                self._cannot_follow(exc)
                raise
            if book.holds:
                self._took_over(f"ps:{book.other} has handed it over")
            if unheard is not None:
                raise unheard
        return taken

    def _cannot_follow(self, exc: Exception) -> None:
        self._say(f"ps:{self._book.me} cannot follow {self._seat.name}: {exc}")
        self._book.abdicate()
        self._seat.forget()

    def _fenced(self) -> r.Taken:
        book = self._book
        epoch = book.reign.epoch if book.holds else 0
        return r.Taken(0, f"ps:{book.me} is {book.known_as.value} in epoch {book.reign.epoch}", epoch)

    def _watch(self) -> None:
        """Looks whether the primary lives."""
        seat, book = self._seat, self._book
        self._hang_up()  # of a seat that has handed over
        silent_s = self._clock() - self._heard_at
        if (self._leading is not None and silent_s < self._timeouts.lease_s) or seat.deserted:
            self._waiting = None
            return
        if book.role is Role.LEARNER:
            with self._lock:
                book.abdicate()
                seat.forget()
            return
        self._waiting = self._waiting or Waiting(None, self._say, self._clock)
        if silent_s >= self._timeouts.lease_s:
            self._ask()
        primary = book.reign.primary
        decides = f"{self._arbiter_name()} to let ps:{book.me} take over"
        self._waiting.check(f"ps:{primary}, which holds {seat.name}, to come back, or {decides}", "")
        asked_at, seats = self._clock(), None
        try:
            seats = self._other_state(primary).seats
        except Unreachable:
            pass  # if it is not heard either, the arbiter decides
        except PeerError:
            return
        if self._heard_at >= asked_at:
            return  # it has come back meanwhile: the answer is of before
        if seats is None:
            self._ask()
            return
        found = next((one for one in seats if one.shard == seat.number), None)
        if found is None or found.incarnation != self._leader[0]:
            self.succeed("the process that held it has died", asked_at)
        elif found.role != Role.PRIMARY.value:
            self._ask()

    def succeed(self, why: str, asked_at: float) -> None:
        """Takes the shard over, because nobody else can hold it; unless another was heard since this moment."""

        def take_over() -> None:
            if self._book.role is Role.STANDBY and self._book.reign_alone():
                self._took_over(why)

        with self._lock:
            if self._heard_at < asked_at:
                self._when_all_is_taken(take_over)

    def granted(self, epoch: int, yes: bool, by: str) -> None:
        """The arbiter's word. Called under the lock."""
        book = self._book
        if not epoch or book.petition != epoch:
            return
        if not yes:
            book.granted(epoch, yes)  # the other ps goes on, and says so itself
        elif book.holds:
            book.granted(epoch, yes)
            self._say(f"ps:{book.me} goes on with {self._seat.name} alone: so {by} has decided")
            self._changed.notify_all()
        else:
            self._when_all_is_taken(lambda: self._accept(epoch, by))

    def _accept(self, epoch: int, by: str) -> None:
        if self._book.granted(epoch, yes=True):  # else what was taken meanwhile has changed whom to ask
            self._took_over(f"so {by} has decided")

    def _took_over(self, why: str) -> None:
        seat, book = self._seat, self._book
        self._waiting = None
        seat.held_since = self._clock()
        seat.take_over()
        self._say(f"ps:{book.me} takes {seat.name} over at version {seat.version:,} (epoch {book.reign.epoch}): {why}")
        self._changed.notify_all()
        self._wake.set()


def _close(connections: tuple[Stream | Connection | None, ...]) -> None:
    for one in connections:
        if one is not None:
            one.close()
