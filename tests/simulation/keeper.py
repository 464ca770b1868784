"""What keeps a seat in step with the other one, as `trainband.ps.keeper`: its threads and waits, around the book."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from tests.simulation.history import Broken
from tests.simulation.letters import Batch, Lesson, Letter, Took
from tests.simulation.network import End, Network
from tests.simulation.seat import Seat
from tests.simulation.threads import Bell, Pipe, Turn
from trainband.errors import DeadlineExceeded, PeerError, Refused, StreamClosed, Unreachable
from trainband.ps.succession import Fenced, Role
from trainband.wire import messages as m
from trainband.wire import replication as r


class Keeper:
    """Keeps one seat in step with the other: teaches it and sends it the records, or watches whether it lives."""

    def __init__(self, seat: Seat, network: Network, arbiter: Callable[[str], str]) -> None:
        """`arbiter`: from the present one, who should decide."""
        self._seat = seat
        self._book = seat.book
        self._process = seat.process
        self._timing = seat.job.timing
        self._network = network
        self._arbiter = arbiter
        self._changed = Bell(seat.process)
        self._wake = Bell(seat.process)
        self._sending = Turn(seat.process)
        self._stream: Pipe | None = None
        self._heard_at = self._sent_at = seat.process.clock
        self._secure_since: float | None = None
        self._streams = count(1)
        self._followed: Pipe | None = None
        self._leader = ("", 0)
        self._leading: End | None = None
        self._at_its_end: Callable[[], None] | None = None
        self._started = False

    def start(self) -> None:
        """Begins, where it has not."""
        if not self._started:
            self._started = True
            self._process.spawn(self._run())

    def changed(self) -> None:
        """The seat has got another role, or a worker has come or gone."""
        self._changed.ring()
        self._wake.ring()

    async def settle(self, number: int, given_up: Callable[[], bool]) -> None:
        """Returns when everything up to a record may be acknowledged.

        Raises:
          Refused: this ps does not hold the shard any more.
          StreamClosed: it was given up.
        """
        book = self._book
        while True:
            try:
                if book.settled(number):
                    return
            except Fenced:
                raise Refused(f"{m.MOVED}another ps has taken shard {self._seat.shard} over.") from None
            if self._stream is not None and await self._exchanged(number):
                continue
            if given_up():
                raise StreamClosed("nobody waits for this answer any more.")
            if self._stream is None:
                await self._changed.wait(self._timing.tick_s)

    # --- the primary's side

    async def _run(self) -> None:
        while True:
            await self._wake.wait(self._timing.tick_s)
            try:
                if self._book.role is Role.PRIMARY:
                    await self._lead()
                elif self._book.role in (Role.STANDBY, Role.LEARNER):
                    await self._watch()
            except PeerError:
                pass
            except (RuntimeError, ValueError) as exc:
                self._fail(f"its keeper ends: {exc}")
                return

    async def _lead(self) -> None:
        if self._stream is not None and not self._stream.end.alive:
            self._lose()
        book = self._book
        renames = book.secure and self._arbiter(book.reign.arbiter) != book.reign.arbiter
        if renames and not await self._exchanged(asks=True):
            return
        book.name_arbiter(self._arbiter(book.reign.arbiter))
        if self._stream is None or self._book.pupil is None:
            await self._recruit()
            return
        if self._book.behind or self._is_due:
            await self._exchanged()
        if self._is_to_go_home():
            await self._hand_over()

    def _is_to_go_home(self) -> bool:
        now = self._process.clock
        if self._seat.shard == self._book.me or not (self._book.holds and self._book.secure):
            self._secure_since = None
            return False
        self._secure_since = now if self._secure_since is None else self._secure_since
        return now - self._secure_since >= self._timing.lease_s

    async def _hand_over(self) -> None:
        if not self._seat.may_move:
            return
        self._secure_since = self._process.clock
        letter = Letter(self._process.name, self._process.incarnation, -1)
        there: m.JobState = await self._call(f"ps:{self._book.other}", "state", letter, self._timing.heartbeat_s)
        if not await self._sending.take(self._timing.tick_s):
            return
        try:
            await self._exchange(asks=True)
            is_right = self._book.holds and self._book.secure
            if is_right and self._seat.may_move and self._seat.sees_the_same(there):
                self._seat.hand_over()
                self._changed.ring()
                await self._exchange(asks=True)
        finally:
            self._sending.give()

    @property
    def _is_due(self) -> bool:
        return self._process.clock - self._sent_at >= self._timing.heartbeat_s / 2

    async def _exchanged(self, number: int | None = None, *, asks: bool = False) -> bool:
        """Makes an exchange, unless another thread is busy with one; returns whether it has."""
        if not await self._sending.take(self._timing.tick_s):
            return False
        try:
            await self._exchange(number, asks=asks)
        finally:
            self._sending.give()
        return True

    async def _exchange(self, number: int | None = None, *, asks: bool = False) -> None:
        stream, book = self._stream, self._book
        if stream is None or book.role is not Role.PRIMARY or book.pupil is None:
            return
        if number is not None and book.settled(number):
            return
        first, entries = book.unsent()
        records = tuple(record for record, _ in entries)
        if number is None and not (records or asks or self._is_due):
            return
        is_fresh = self._process.clock - self._heard_at < self._timing.heartbeat_s
        asks |= not (records and stream.end.keeps and stream is self._followed and book.secure and is_fresh)
        header = r.Records(book.lineage, book.reign.epoch, first, self._seat.version, records, asks)
        try:
            stream.send(Batch(header, tuple(gradient or None for _, gradient in entries)))
            self._sent_at = self._process.clock
            if asks:
                await self._confirm(stream)
                return
        except PeerError:
            self._lose()
            return
        book.taken(first + len(records) - 1, book.reign.arbiter)
        self._changed.ring()

    async def _confirm(self, stream: Pipe) -> None:
        begin, book, pupil = self._process.clock, self._book, self._book.pupil
        while (taken := await stream.receive(self._timing.heartbeat_s)) is None:
            if self._process.clock - begin >= self._timing.lease_s:
                raise DeadlineExceeded(f"ps:{self._book.other} does not take the records")
        self._heard_at = self._process.clock
        self._followed = stream
        if pupil is None or book.pupil is not pupil:
            return  # it was another reign
        if taken.fenced:
            try:
                book.refused(taken.epoch)
            except Fenced:
                self._deposed()
                return
            raise StreamClosed(taken.fenced)
        book.taken(taken.position, self._arbiter(book.reign.arbiter))
        if book.role is not Role.PRIMARY:
            self._stepped_down(pupil.incarnation)
        self._changed.ring()

    def _stepped_down(self, successor: str) -> None:
        self._heard_at = self._process.clock
        self._leader = (successor, 0)
        self._changed.ring()

    def _deposed(self) -> None:
        self._book.abdicate()
        self._seat.forget()
        self._changed.ring()

    def _lose(self) -> None:
        self._hang_up()
        self._book.lost()
        self.changed()

    async def _recruit(self) -> None:
        seat, book = self._seat, self._book
        self._secure_since = None
        if book.bereft and self._process.clock - self._heard_at >= self._timing.lease_s:
            self._ask()
        self._hang_up()
        letter = Letter(self._process.name, self._process.incarnation, -1, seat.state())
        address = f"ps:{book.other}"
        try:
            other: r.SeatState = await self._call(address, "invite", letter, self._timing.lease_s)
        except (Unreachable, DeadlineExceeded) as exc:
            if book.bereft and isinstance(exc, Unreachable):
                self._ask()
            elif not book.bereft:
                await self._wake.wait(self._timing.retry_s)
            return
        except Refused:
            await self._wake.wait(5.0)
            return
        if book.role is not Role.PRIMARY:
            return
        before, was_in_doubt = book.reign, book.in_doubt
        try:
            at = book.meet(Role(other.role), other.lineage, other.reign.epoch, other.position, other.incarnation)
        except Fenced:
            self._deposed()
            return
        finally:
            self._changed.ring()
        if not (book.holds or book.in_doubt):
            self._stepped_down(other.incarnation)
            return
        if was_in_doubt and book.holds:
            self._took_over()
        elif book.pupil is None and book.reign != before:
            seat.note_reign()  # alone, because the other is another process
        try:
            stream = Pipe(await self._network.open_stream(self._process, address, seat.shard, self._timing.call_s))
            stream.send(r.Lead(seat.shard, book.me, letter.body.incarnation, next(self._streams)))
            if at is None:
                await self._teach(stream, other.incarnation)
            self._stream = stream
        except PeerError:
            self._lose()

    async def _teach(self, stream: Pipe, incarnation: str) -> None:
        while not await self._sending.take(self._timing.tick_s):
            pass
        try:
            stream.send(self._seat.lesson(incarnation))
            await self._confirm(stream)
        finally:
            self._sending.give()
        self._wake.ring()

    def _ask(self) -> None:
        if self._book.role is Role.STANDBY or self._book.bereft:
            self._book.ask()

    def _hang_up(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    # --- the other side

    def follow(self, end: End, lead: r.Lead) -> None:
        """A primary's stream has come."""
        if lead.incarnation == self._leader[0] and lead.number < self._leader[1]:
            return  # it was given up for another, which has come first
        self._leading, self._leader = end, (lead.incarnation, lead.number)
        self._at_its_end = None
        self._heard_at = self._process.clock

    def took(self, end: End, frame: Lesson | Batch) -> bool:
        """A frame of a primary's stream; returns whether there may be more."""
        if self._leading is not end:
            return False  # it has come again, on another stream
        self._heard_at = self._process.clock
        taken = self._taken(frame)
        if taken is None:
            return False
        if taken.fenced or not (isinstance(frame, Batch) and not frame.header.asks):
            with suppress(StreamClosed):
                end.send(taken)
        return not taken.fenced

    def ended(self, end: End) -> None:
        """A primary's stream has ended."""
        if self._leading is end:
            self._leading = None
            then, self._at_its_end = self._at_its_end, None
            if then is not None:
                then()
            self._changed.ring()
        self._wake.ring()

    def _when_all_is_taken(self, then: Callable[[], None]) -> None:
        if self._leading is None or not self._leading.keeps or not self._seat.job.parts.takes_all:
            then()
            return
        self._at_its_end = then
        self._leading.refuse_more()

    async def await_all_taken(self) -> None:
        """Returns when all is done that is left in a stream which the primary has given up.

        Raises:
          Refused: there still is something after a lease.
        """
        begin = self._process.clock
        while self._leading is not None and self._leading.keeps:
            if self._process.clock - begin >= self._timing.lease_s:
                raise Refused(f"ps:{self._book.me} has not done yet all that it was sent.")
            await self._changed.wait(self._timing.tick_s)

    def _taken(self, frame: Lesson | Batch) -> Took | None:
        seat, book = self._seat, self._book
        if isinstance(frame, Lesson):
            if not self._started:
                return None  # it has come since, and was not invited
            if not book.may_learn(frame.lineage, frame.reign.epoch):
                return self._refusal()
            if book.role is Role.PRIMARY:
                self._deposed()
            seat.learn(frame)
            return Took(book.position)
        header, before, leader, was_in_doubt = frame.header, book.role, self._leader[0], book.in_doubt
        try:
            old = book.take(header.lineage, header.epoch, header.first, header.records, leader)
        except Fenced:
            return self._refusal()
        except ValueError as exc:
            self._fail(f"{exc}")
            self._deposed()
            return None
        if was_in_doubt:
            self._stepped_down(leader)
        try:
            seat.follow(header, old, frame.gradients)
        except Exception as exc:
            self._fail(f"it cannot follow: {exc}")
            self._deposed()
            return None
        if before is Role.LEARNER and book.role is Role.STANDBY:
            seat.note_secured(f"ps:{book.reign.primary}/{self._leader[0]}")
        taken = Took(book.position)
        if book.holds:
            self._took_over()
            seat.note_heir(f"ps:{book.reign.standby}/{leader}", taken.position)
        return taken

    def _refusal(self) -> Took:
        book = self._book
        epoch = book.reign.epoch if book.holds else 0
        return Took(0, f"ps:{book.me} is {book.known_as.value} in epoch {book.reign.epoch}", epoch)

    async def _watch(self) -> None:
        seat, book = self._seat, self._book
        self._hang_up()
        silent_s = self._process.clock - self._heard_at
        if self._leading is not None and silent_s < self._timing.lease_s:
            return
        if book.role is Role.LEARNER:
            book.abdicate()
            seat.forget()
            return
        if silent_s >= self._timing.lease_s:
            self._ask()
        letter = Letter(self._process.name, self._process.incarnation, -1)
        asked_at, state = self._process.clock, None
        try:
            state = await self._call(f"ps:{book.reign.primary}", "state", letter, self._timing.heartbeat_s)
        except Unreachable:
            pass
        except PeerError:
            return
        if self._heard_at >= asked_at:
            return
        if state is None:
            self._ask()
            return
        found = next((one for one in state.seats if one.shard == seat.shard), None)
        if found is None or found.incarnation != self._leader[0]:
            self._succeed()
        elif found.role != Role.PRIMARY.value:
            self._ask()

    async def _call(self, address: str, action: str, letter: Letter, timeout_s: float) -> Any:
        return await self._network.call(self._process, address, self._seat.shard, action, letter, timeout_s)

    def _succeed(self) -> None:
        def take_over() -> None:
            if self._book.role is Role.STANDBY and self._book.reign_alone():
                self._took_over()

        self._when_all_is_taken(take_over)

    def granted(self, epoch: int, yes: bool) -> None:
        """The arbiter's word."""
        book = self._book
        if not epoch or book.petition != epoch:
            return
        if not yes:
            book.granted(epoch, yes)
        elif book.holds:
            book.granted(epoch, yes)
            self._seat.note_reign()
            self._changed.ring()
        else:
            self._when_all_is_taken(lambda: self._accept(epoch))

    def _accept(self, epoch: int) -> None:
        if self._book.granted(epoch, yes=True):
            self._took_over()

    def _took_over(self) -> None:
        self._seat.take_over()
        self.changed()

    def _fail(self, text: str) -> None:
        self._seat.job.history.append(Broken(self._process.now, f"{self._process}", text))
