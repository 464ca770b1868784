"""A simulated ps task: what `trainband.ps.service` does around its seats, with the real book of members."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.simulation.history import Answered, Heard, Looked, PushKey
from tests.simulation.keeper import Keeper
from tests.simulation.letters import Batch, Greeting, Lesson, Letter, Session, Values
from tests.simulation.network import End, Network
from tests.simulation.process import Process
from tests.simulation.seat import Job, Pending, Seat
from trainband.data.leases import LeaseAnswer
from trainband.errors import Refused, StreamClosed
from trainband.ps.members import Member
from trainband.ps.rules.base import ENOUGH, Push, RuleError
from trainband.ps.succession import Role
from trainband.wire import messages as m
from trainband.wire import replication as r

WITH_LIFE = ("leave", "pause", "heartbeat", "lease")
"""The actions that say which life of a worker speaks."""

SETTLED = ("begin", "finish", "lease", "pause")
"""Those that are answered only when the standby has what they have changed."""


class _Account:
    """What else a ps knows of a worker."""

    def __init__(self) -> None:
        self.blocked_by: tuple[str, ...] = ()
        self.circled_at: float | None = None


class Ps:
    """One life of a ps task. Its seats are found by the number of their shard."""

    def __init__(self, process: Process, job: Job, network: Network) -> None:
        self.process = process
        self.number = int(process.name.partition(":")[2])
        self.members = job.parts.members(job.timing.lease_s, job.tasks)
        self.seats: dict[int, Seat] = {}
        self._job = job
        self._network = network
        self._keepers: dict[int, Keeper] = {}
        self._accounts: dict[int, _Account] = {}
        self._adopted: dict[int, float] = {}
        self._sessions: dict[End, Session] = {}
        self._leads: dict[End, Keeper] = {}
        self._note = job.history.append
        self._seat(self.number)
        process.every(job.timing.tick_s, self._tick)

    # --- its seats

    def _seat(self, shard: int) -> Seat:
        if shard not in self.seats:
            if shard not in (self.number, (self.number - 1) % self._job.shards):
                raise Refused(f"{self.process.name} has no seat of shard {shard}.")
            self.seats[shard] = seat = Seat(self.process, shard, self._job, self.members)
            seat.answer_later = lambda pending: self._answer_later(seat, pending)
        return self.seats[shard]

    def _keeper(self, seat: Seat) -> Keeper:
        if seat.shard not in self._keepers:
            self._keepers[seat.shard] = Keeper(seat, self._network, self._arbiter)
        return self._keepers[seat.shard]

    def _keep(self, seat: Seat) -> None:
        if self._job.replicas:
            self._keeper(seat).start()

    def _arbiter(self, present: str) -> str:
        live = sorted(self.members.live(), key=lambda member: member.number)
        if any(member.incarnation == present for member in live):
            return present
        return next((member.incarnation for member in live), present)

    # --- control

    def call(self, seat: int, action: str, letter: Letter) -> Any:
        """See `Server.call`."""
        return self._call(self._seat(seat), action, letter)

    def _call(self, seat: Seat, action: str, letter: Letter) -> Any:
        match action:
            case "state":
                return self._state(seat)
            case "join":
                return self._join(seat, letter)
            case "invite":
                return self._invite(seat, letter.body)
        member = self.members.get(letter.worker)
        if self._job.parts.asks_incarnation and action in WITH_LIFE and member.incarnation != letter.incarnation:
            if action == "leave":
                return self._state(seat)
            raise Refused(f"{m.REPLACED} {member.task} in the job.")
        if action == "leave":
            return self._leave(seat, member, letter.body)
        self._hear(member)
        answered = self._do(seat, action, member, letter)
        return self._settled(seat, seat.book.position, answered) if action in SETTLED else answered

    def _do(self, seat: Seat, action: str, member: Member, letter: Letter) -> Any:
        match action:
            case "heartbeat":
                self._accounts[member.number].blocked_by, paused = letter.body
                sees = any(one.reigns for one in self.seats.values())
                if paused and (member.says_paused or not sees):
                    self._set_aside(member)
                elif member.paused and not paused and not sees:
                    member.paused = False
                    self._came(member)
                member.says_paused = paused
            case "pause":
                self._set_aside(member)
                seat.free_reserved(member.number)
            case "adopt":
                return self._adopt(seat, member, letter.body)
            case "begin":
                self._begin(seat, letter.body)
            case "finish":
                seat.require_primary()
                seat.begin(seat.fit, min(seat.last_version, seat.version))
            case "lease":
                return self._lease(seat, member, letter)
            case "grant":
                grant: r.Grant = letter.body
                if grant.incarnation == seat.book.reign.arbiter == member.incarnation:
                    self._keeper(seat).granted(grant.epoch, grant.yes)
        return self._state(seat)

    def _settled(self, seat: Seat, position: int, answered: Any) -> Any:
        if seat.shard not in self._keepers:
            return answered

        async def later() -> Any:
            await self._settle(seat, position, lambda: False)
            return answered

        return later()

    async def _settle(self, seat: Seat, position: int, given_up: Callable[[], bool]) -> None:
        keeper = self._keepers.get(seat.shard)
        if keeper is not None:
            await keeper.settle(position, given_up)
            self._note_answer(seat, position)

    def _note_answer(self, seat: Seat, position: int) -> None:
        book, pupil = seat.book, seat.book.pupil
        holders = {seat.name}
        # A standby stays one while it is to be told that another worker decides from now on.
        may_succeed = book.secure or (book._arbiter_changes and not book.bereft)  # noqa: SLF001
        if pupil is not None and may_succeed and pupil.taken >= position:
            holders.add(f"ps:{seat.book.other}/{pupil.incarnation}")
        now, lineage = self.process.now, seat.book.lineage
        self._note(Answered(now, seat.shard, seat.name, lineage, position, frozenset(holders)))

    def _join(self, seat: Seat, letter: Letter) -> Greeting:
        self._expire()
        member, news = self.members.join(letter.task, letter.incarnation, "host", 1, self.process.clock)
        self._accounts.setdefault(member.number, _Account())
        self._note_heard(member)
        if news:
            member.paused = letter.body
            self._came(member)
        return self._greeting(seat, member)

    def _greeting(self, seat: Seat, member: Member) -> Greeting:
        seen = seat.rule.ledger.seen.get(member.number, 0) if seat.rule is not None else 0
        life = seat.book.lineage if seat.reigns else ""
        return Greeting(
            member.number, seat.reigns, seen, life, seat.fit, seat.book.reign.epoch, seat.book.role is Role.EMPTY
        )

    async def _invite(self, seat: Seat, inviter: r.SeatState) -> r.SeatState:
        if seat.shard in self._keepers:
            await self._keepers[seat.shard].await_all_taken()
        if seat.book.role is not Role.PRIMARY and seat.book.lineage != inviter.lineage:
            seat.book.abdicate()
            seat.forget()
        seat.invited_at = self.process.clock
        if seat.book.role is Role.EMPTY:
            self._keep(seat)
        return seat.state()

    def _leave(self, seat: Seat, member: Member, failure: str) -> m.JobState:
        if self.members.leave(member, failure):
            self._gone(member, "left")
        return self._state(seat)

    def _set_aside(self, member: Member) -> None:
        if not member.paused:
            member.paused = True
            for seat in self.seats.values():
                seat.member_left(member.number, "paused")

    def _adopt(self, seat: Seat, member: Member, values: Values) -> Greeting:
        if not seat.reigns and self.process.clock - seat.invited_at < self._job.timing.lease_s:
            raise Refused(f"{m.MOVED}another ps has the values of shard {seat.shard}.")
        seat.adopt(alone=not values.whole_job)
        self._adopted[seat.shard] = self.process.clock
        self._keep(seat)
        return self._greeting(seat, member)

    def _begin(self, seat: Seat, begin: m.Begin) -> None:
        seat.require_primary()
        if begin.fit > seat.fit:
            seat.begin(begin.fit, begin.last_version)

    def _lease(self, seat: Seat, member: Member, letter: Letter) -> LeaseAnswer:
        if not member.live:
            raise Refused(f"{member.task} has left the job, and gets no more pieces.")
        seat.require_primary()
        return seat.lease(member.number, letter.incarnation, letter.body)

    def _state(self, seat: Seat) -> m.JobState:
        live = self.members.live()
        return m.JobState(
            version=seat.version,
            last_version=seat.last_version,
            fit=seat.fit,
            initialised=seat.reigns,
            live=tuple(member.task for member in live),
            waiting_for=tuple(self.members.name(number) for number in sorted(seat.waits)),
            at_work=tuple(member.task for member in self.members.at_work()),
            seats=tuple(one.state() for one in self.seats.values()),
        )

    # --- members

    def _tick(self) -> None:
        self._expire()
        self._see_to_circles()
        self._free_pieces()
        for seat in self.seats.values():
            if seat.waits:
                self._note(Looked(self.process.now, seat.shard, seat.waits, seat.name))

    def _expire(self) -> None:
        for member in self.members.expired(self.process.clock):
            self.members.lose(member)
            self._gone(member, "lost")

    def _see_to_circles(self) -> None:
        numbers = {member.task: member.number for member in self.members}
        blocked_by = {
            member.number: [numbers[task] for task in self._accounts[member.number].blocked_by if task in numbers]
            for member in self.members.live()
        }
        circle = {number for seat in self.seats.values() for number in seat.circle(blocked_by)}
        for member in self.members.live():
            account, now = self._accounts[member.number], self.process.clock
            if member.number not in circle or not self._job.parts.resolves_circles:
                account.circled_at = None
            elif account.circled_at is None:
                account.circled_at = now
            elif now - account.circled_at >= self._job.timing.circle_s:
                self._set_aside(member)
                account.circled_at = None

    def _free_pieces(self) -> None:
        for shard, since in list(self._adopted.items()):
            if self.process.clock - since >= self._job.timing.lease_s and self._job.parts.frees_pieces:
                del self._adopted[shard]
                seat = self.seats[shard]
                if seat.reigns:
                    seat.free_pieces({member.number for member in self.members.live()})
                    for member in self.members.live():
                        if member.paused:
                            seat.free_reserved(member.number)

    def _came(self, member: Member) -> None:
        for seat in self.seats.values():
            if member.paused:
                seat.member_left(member.number, "paused")
            else:
                seat.member_joined(member.number)

    def _gone(self, member: Member, why: str) -> None:
        for seat in self.seats.values():
            seat.member_left(member.number, why)
        for keeper in self._keepers.values():
            keeper.changed()

    def _hear(self, member: Member) -> None:
        if self.members.get(member.number) is not member:
            raise Refused(f"{m.REPLACED} {member.task} in the job.")
        self._note_heard(member)
        if self.members.heard(member, self.process.clock):
            self._came(member)

    def _note_heard(self, member: Member) -> None:
        for seat in self.seats.values():
            self._note(Heard(self.process.now, seat.shard, member.number, seat.name))

    # --- streams

    def accept(self, seat: int, end: End) -> None:
        """See `Server.accept`."""
        session = Session()
        session.shard = seat
        self._sessions[end] = session
        end.on_frame = lambda frame: self._frame(end, frame)
        end.on_end = lambda: self._closed(end)

    def _frame(self, end: End, frame: Any) -> None:
        session = self._sessions.get(end)
        if session is None:
            return
        try:
            self._serve(end, session, frame)
        except (Refused, RuleError) as exc:
            self._refuse(end, exc)

    def _serve(self, end: End, session: Session, frame: Any) -> None:
        seat = self._seat(session.shard)
        if isinstance(frame, r.Lead):
            self._leads[end] = self._keeper(seat)
            self._leads[end].follow(end, frame)
        elif isinstance(frame, Lesson | Batch):
            if not self._leads[end].took(end, frame):
                end.close()
                self._closed(end)
        elif isinstance(frame, m.Open):
            member = self.members.get(frame.worker)
            if member.incarnation != frame.incarnation:
                raise Refused(f"worker number {frame.worker} is another process; join again.")
            member.streams += 1
            session.member = member
            self._hear(member)
        elif session.member is None:
            raise Refused("the stream did not say whose it is.")
        elif isinstance(frame, m.Push):
            self._push(end, seat, session.member, frame)
        else:
            self._answer_later(seat, Pending(end))

    def _refuse(self, end: End, exc: Exception) -> None:
        with suppress(StreamClosed):
            end.send(m.Failure(str(exc)))
        end.close()
        self._closed(end)

    def _closed(self, end: End) -> None:
        keeper = self._leads.pop(end, None)
        if keeper is not None:
            keeper.ended(end)
        session = self._sessions.pop(end, None)
        member = session.member if session is not None else None
        if member is None:
            return
        member.streams -= 1
        if member.streams == 0 and self.members.lose(member):
            self._gone(member, "lost")

    def _push(self, end: End, seat: Seat, member: Member, push: m.Push) -> None:
        self._hear(member)
        seat.require_primary()
        self.members.pushed(member)
        member.says_paused = False
        if member.paused:
            member.paused = False
            self._came(member)
        if 0 < push.fit < seat.fit:
            late = Pending(end, push.sequence)
            late.outcome, late.detail, late.over = m.DROPPED, ENOUGH, True
            self._answer_later(seat, late)
            return
        event = Push(member.number, push.sequence, push.version, push.examples)
        seat.push(event, PushKey(member.number, member.incarnation, push.sequence), end)

    def _answer_later(self, seat: Seat, pending: Pending) -> None:
        """The worker's own thread sends the answer, a moment later."""
        self.process.after(0.001, lambda: self.process.spawn(self._send_params(seat, pending)))

    async def _send_params(self, seat: Seat, pending: Pending) -> None:
        end = pending.end
        if end not in self._sessions:
            return
        try:
            seat.require_primary()
            version, position = seat.version, seat.book.position
            done = pending.over or seat.complete
            await self._settle(seat, position, lambda: end.closed)
            end.send(m.Params(version, pending.outcome, pending.staleness, done, pending.detail))
        except Refused as exc:
            self._refuse(end, exc)
        except StreamClosed:
            return
