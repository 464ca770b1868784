"""A seat: one shard on one simulated ps, as `trainband.ps.seat` and the engine have it, around the real rule.

The gradient of a push is the push's key, and the value of the shard is the tuple of its updates: so what a shard holds
says exactly which pushes made it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

from tests.simulation.history import (
    Applied,
    Arrived,
    Begun,
    Dropped,
    Final,
    In,
    Leased,
    Out,
    Promoted,
    PushKey,
    Record,
    Released,
    Reported,
    Restored,
    Secured,
    Taught,
    Teaching,
    Update,
    Waits,
)
from tests.simulation.letters import Lesson, Timing
from tests.simulation.network import End
from tests.simulation.parts import Parts
from tests.simulation.process import Process
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import Refused
from trainband.ps.members import Members
from trainband.ps.rules.base import (
    REPLAYED,
    Apply,
    Begin,
    Drop,
    Event,
    Instruction,
    Join,
    Leave,
    Push,
    Reply,
    RuleState,
    UpdateRule,
)
from trainband.ps.seat import Seat as RealSeat
from trainband.ps.succession import Role
from trainband.wire import messages as m
from trainband.wire import replication as r


class Checkpoint(NamedTuple):
    """What a checkpoint says of one shard."""

    version: int = 0
    value: tuple[Update, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()


class Storage:
    """The directory of checkpoints, which outlives every process: the newest of each shard."""

    def __init__(self) -> None:
        self.newest: dict[int, Checkpoint] = {}

    def of(self, shard: int) -> Checkpoint:
        """The newest one; that of the first values, where there is none yet."""
        return self.newest.get(shard, Checkpoint())

    def keep(self, shard: int, checkpoint: Checkpoint) -> None:
        """A checkpoint has been written."""
        if checkpoint.version > self.of(shard).version:
            self.newest[shard] = checkpoint


class Job(NamedTuple):
    """What every seat of a job knows from the beginning."""

    rule: UpdateRule
    tasks: Sequence[str]
    """The planned workers; the first is the chief."""
    shards: int
    replicas: int
    timing: Timing
    parts: Parts
    storage: Storage
    checkpoint_every: int
    """Updates; 0 for no checkpoint but that of the first values."""
    history: list[Record]
    handed_over: Callable[[], None]
    """Is told when a seat has handed its shard over."""


class Pending:
    """A push whose worker waits for the answer on a stream; or a question, with the number 0."""

    __slots__ = ("detail", "end", "outcome", "over", "sequence", "staleness")

    def __init__(self, end: End, sequence: int = 0) -> None:
        self.end = end
        self.sequence = sequence
        self.outcome = m.APPLIED
        self.staleness = 0
        self.detail = ""
        self.over = False


class _View(NamedTuple):
    """As much of a seat as `trainband.ps.seat.Seat.circle` looks at."""

    engine: Any
    reigns: bool


class Seat:
    """One shard on one ps. Everything in it happens as under the service's lock."""

    def __init__(self, process: Process, shard: int, job: Job, members: Members) -> None:
        self.process = process
        self.shard = shard
        self.job = job
        self.name = f"{process}"
        me = int(process.name.partition(":")[2])
        self.book = job.parts.succession(shard, me)
        if job.replicas:
            self.book.other = (shard + 1) % job.shards if me == shard else shard
        self.sources = job.parts.sources()
        self.rule: RuleState | None = None
        self.value: list[Update] = []
        self.fit = 0
        self.last_version = 0
        self.invited_at = float("-inf")
        self.answer_later: Callable[[Pending], None] = lambda _: None
        """What sends the answer to a push; of the ps."""
        self._members = members
        self._held: dict[tuple[int, int], PushKey] = {}
        self._waiting: dict[tuple[int, int], list[Pending]] = {}
        self._waits: frozenset[int] = frozenset()
        self._asked: dict[tuple[int, str, int], LeaseAnswer] = {}
        self._crowns = 0
        self._note = job.history.append

    # --- what it knows

    @property
    def reigns(self) -> bool:
        """Whether this ps holds the shard, and values are there."""
        return self.book.holds

    @property
    def version(self) -> int:
        """How many updates are in the value."""
        return len(self.value)

    @property
    def complete(self) -> bool:
        """Whether all the updates that were asked for are made."""
        return self.fit > 0 and self.rule is not None and self.version >= self.last_version

    @property
    def waits(self) -> frozenset[int]:
        """The workers without whose push somebody does not go on."""
        return self._waits if self.reigns else frozenset()

    @property
    def waiting(self) -> frozenset[int]:
        """The workers that wait for an answer."""
        return frozenset(worker for worker, _ in self._waiting)

    def circle(self, blocked_by: Mapping[int, Collection[int]]) -> set[int]:
        """As the real one."""
        if self.rule is None or not self._waits:
            return set()
        engine = _Engine(self.rule, set(self.waiting))
        return RealSeat.circle(cast(Any, _View(engine, self.reigns)), blocked_by)

    def state(self) -> r.SeatState:
        """As a record."""
        book = self.book
        return r.SeatState(
            self.shard,
            book.me,
            book.known_as.value,
            book.lineage,
            book.reign,
            book.position,
            self.version,
            self.process.incarnation,
            behind=book.behind,
            petition=book.asks(),
        )

    def require_primary(self) -> RuleState:
        """The rule, where this ps holds the shard."""
        if not self.reigns or self.rule is None:
            raise Refused(f"{m.MOVED}{self.name} does not hold shard {self.shard}.")
        return self.rule

    def final(self) -> Final:
        """What there is at the end."""
        held = tuple(self._held.values())
        unanswered = self.waiting
        now, value = self.process.now, tuple(self.value)
        return Final(now, self.shard, self.version, value, held, unanswered, self._waits, self.name)

    # --- its beginning and its end

    def adopt(self, *, alone: bool) -> None:
        """Takes the values of the newest checkpoint, and holds the shard."""
        if self.rule is not None:
            return
        checkpoint = self.job.storage.of(self.shard)
        self.value = list(checkpoint.value)
        workers = len(self.job.tasks)
        self.sources.restore(dict(checkpoint.sources), workers)
        planned = 0 if alone and not self.job.parts.plans_anew else workers
        self.rule = self.job.parts.start(self.job.rule, checkpoint.version, planned)
        self._note(Restored(self.process.now, self.shard, checkpoint.version, self.name, checkpoint.value))
        for known in self._members:
            counts = known.live and not known.paused
            self._advance(Join(known.number) if counts else Leave(known.number), "left")
        self._crowns += 1
        self.book.crown(f"{self.process.incarnation}.{self._crowns}")

    def forget(self) -> None:
        """Gives up a shard that another ps holds."""
        for key in list(self._waiting):
            self._answer(key)
        self.rule = None
        self.value = []
        self._held = {}
        self._waits = frozenset()
        self.sources.take_over({})
        self.fit, self.last_version = 0, 0

    @property
    def may_move(self) -> bool:
        """Whether there is a training."""
        return self.fit > 0 and not self.complete

    def sees_the_same(self, other: m.JobState) -> bool:
        """Whether another ps has the same workers in the job, and at work."""
        return self._members.are(other.live, other.at_work)

    def hand_over(self) -> None:
        """Has the standby hold the shard."""
        for key in list(self._waiting):
            self._answer(key)
        self.book.hand_over()
        self.job.handed_over()

    # --- what changes it. Each is a record of the log.

    def member_joined(self, number: int) -> None:
        """A worker is in the job."""
        if self.rule is not None and (self.reigns or self.book.role is Role.EMPTY):
            self._advance(Join(number))
            self.book.append(r.Joined(number))

    def member_left(self, number: int, why: str) -> None:
        """Nobody waits for a worker any more; if it is gone, what it had leased goes to others."""
        if not (self.reigns or self.book.role is Role.EMPTY):
            return
        if why != "paused":
            self.sources.release(number)
            self.book.append(r.Released(number))
        if self.rule is not None:
            self._advance(Leave(number), why)
            self.book.append(r.Left(number))

    def begin(self, fit: int, last_version: int) -> None:
        """Wants updates until this version."""
        self._begin(fit, last_version)
        self.book.append(r.Began(fit, last_version, ()))

    def push(self, event: Push, key: PushKey, end: End) -> None:
        """A gradient has come."""
        self.require_primary()
        self._note(Arrived(self.process.now, self.shard, key, event.version, self.name))
        instructions = self._taken(event, key)
        # A push may come twice, over two streams, and nobody knows which of them still lives.
        self._waiting.setdefault((event.worker, event.sequence), []).append(Pending(end, event.sequence))
        self._follow(instructions)
        self.book.append(r.Pushed(event.worker, event.sequence, event.version, event.examples), key)

    def lease(self, number: int, incarnation: str, request: LeaseRequest) -> LeaseAnswer:
        """The next piece of the shared data."""
        answer = self.sources.lease(number, request)
        position = self.book.append(r.Leased(number, request))
        key = (number, request.life, request.number)
        now, who, before = self.process.now, (number, incarnation), self._asked.get(key)
        self._asked[key] = answer
        for piece in request.finished if before is None else ():
            self._note(Reported(now, *who, piece, position, self.name))
        if answer.kind == "piece" and answer != before:
            piece = answer.epoch, answer.piece
            self._note(Leased(now, *who, piece, answer.start, answer.stop, position, self.name))
        return answer

    def free_reserved(self, number: int) -> None:
        """Gives to others what is reserved for a worker that has paused."""
        if self.sources.release_reserved(number):
            self.book.append(r.Released(number, reserved=True))

    def free_pieces(self, live: Collection[int]) -> None:
        """Gives to others what is reserved for workers that have not come."""
        for number in sorted(self.sources.holders() - set(live)):
            self.sources.release(number)
            self.book.append(r.Released(number))

    # --- the rule

    def _taken(self, event: Push, key: PushKey) -> Sequence[Instruction]:
        assert self.rule is not None
        again = self.rule.ledger.is_replay(event)
        self.rule, instructions = self.rule.advance(event)
        if not again or self.job.parts.keeps_replays:
            self._held.setdefault((event.worker, event.sequence), key)
        return instructions

    def _begin(self, fit: int, last_version: int) -> None:
        self.fit, self.last_version = fit, last_version
        self._note(Begun(self.process.now, self.shard, last_version, self.name))
        self._advance(Begin(last_version))

    def _advance(self, event: Event, why: str = "") -> None:
        assert self.rule is not None
        now = self.process.now
        if isinstance(event, Join):
            self._note(In(now, self.shard, event.worker, "", self.name))
        elif isinstance(event, Leave):
            self._note(Out(now, self.shard, event.worker, why, self.name))
            for key in [key for key in self._waiting if key[0] == event.worker]:
                self._answer(key)
        self.rule, instructions = self.rule.advance(event)
        self._follow(instructions)

    def _follow(self, instructions: Sequence[Instruction]) -> None:
        assert self.rule is not None
        now = self.process.now
        for instruction in instructions:
            match instruction:
                case Apply(pushes=keys):
                    self._apply(keys)
                case Drop(worker=worker, sequence=sequence, reason=reason):
                    dropped = self._held.pop((worker, sequence), None)
                    if dropped is not None and reason != REPLAYED:
                        self._note(Dropped(now, self.shard, dropped, reason, self.name))
                    for waiting in self._waiting.get((worker, sequence), ()):
                        waiting.outcome, waiting.detail = m.DROPPED, reason
                case Reply(worker=worker, sequence=sequence, staleness=staleness):
                    self._note(Released(now, self.shard, worker, sequence, self.name))
                    for waiting in self._waiting.get((worker, sequence), ()):
                        waiting.staleness = staleness
                    self._answer((worker, sequence))
        waits = self.rule.waiting_for()
        if waits != self._waits:
            self._waits = waits
            self._note(Waits(now, self.shard, waits, self.name))

    def _answer(self, key: tuple[int, int]) -> None:
        for waiting in self._waiting.pop(key, ()):
            self.answer_later(waiting)

    def _apply(self, keys: Sequence[tuple[int, int]]) -> None:
        update = tuple(self._held.pop(key) for key in keys)
        self.value.append(update)
        self._note(Applied(self.process.now, self.shard, self.name, self.version, update))
        every = self.job.checkpoint_every
        if every and self.version % every == 0 and self.reigns:
            checkpoint = Checkpoint(self.version, tuple(self.value), tuple(self.sources.record().items()))
            self.process.after(0.2, lambda: self.job.storage.keep(self.shard, checkpoint))

    # --- two seats

    def lesson(self, incarnation: str) -> Lesson:
        """Everything as it is, for the other seat."""
        rule = self.require_primary()
        position = self.book.teach(incarnation)
        self._note(Teaching(self.process.now, self.shard, self.name, self.book.lineage, position))
        return Lesson(
            self.book.lineage,
            self.book.reign,
            position,
            rule,
            tuple(self.value),
            dict(self._held),
            self.fit,
            self.last_version,
            self.sources.copy(),
            dict(self._asked),
            self.name,
        )

    def learn(self, lesson: Lesson) -> None:
        """Takes everything over from the primary."""
        self.forget()
        self.rule, self.value, self._held = lesson.rule, list(lesson.value), dict(lesson.held)
        self._waits = lesson.rule.waiting_for()
        self.fit, self.last_version = lesson.fit, lesson.last_version
        self.sources.take_over(lesson.sources)
        self._asked = dict(lesson.asked)
        self.book.learn(lesson.lineage, lesson.reign, lesson.position)
        self._note(Taught(self.process.now, self.shard, self.name, lesson.seat, lesson.lineage, lesson.position))

    def follow(self, records: r.Records, old: int, gradients: Sequence[PushKey | None]) -> None:
        """Does what the primary has done. The first `old` records were done before."""
        for record, gradient in list(zip(records.records, gradients, strict=True))[old:]:
            match record:
                case r.Pushed(worker, sequence, version, examples):
                    assert gradient is not None
                    self._follow(self._taken(Push(worker, sequence, version, examples), gradient))
                case r.Joined(worker):
                    self._advance(Join(worker))
                case r.Left(worker):
                    self._advance(Leave(worker), "as recorded")
                case r.Began(fit, last_version):
                    self._begin(fit, last_version)
                case r.Leased(worker, request):
                    self._asked[worker, request.life, request.number] = self.sources.lease(worker, request)
                case r.Released(worker, False):
                    self.sources.release(worker)
                case r.Released(worker, True):
                    self.sources.release_reserved(worker)
        if self.version != records.version:
            raise ValueError(f"{self.name} followed to version {self.version}, its primary is at {records.version}")

    def take_over(self) -> None:
        """Begins to hold the shard: the rule hears who is in the job as this ps sees it."""
        assert self.rule is not None
        self.note_reign()
        counted = {known.number for known in self._members if known.live and not known.paused}
        live = {known.number for known in self._members.live()}
        for worker in sorted(self.rule.ledger.workers - counted):
            self.member_left(worker, "paused" if worker in live else "lost")
        for worker in sorted(counted - self.rule.ledger.workers):
            self.member_joined(worker)

    def note_secured(self, by: str) -> None:
        """For the history: this seat may succeed."""
        self._note(Secured(self.process.now, self.shard, self.name, by, self.book.position))

    def note_heir(self, other: str, position: int) -> None:
        """For the history: the seat that has handed the shard over to this one may succeed."""
        self._note(Secured(self.process.now, self.shard, other, self.name, position))

    def note_reign(self) -> None:
        """For the history: this seat has the shard alone."""
        book, now, value = self.book, self.process.now, tuple(self.value)
        self._note(
            Promoted(now, self.shard, book.reign.epoch, self.version, self.name, book.lineage, book.position, value)
        )


class _Engine(NamedTuple):
    """As much of an engine as `trainband.ps.seat.Seat.circle` looks at."""

    rule: RuleState
    workers: set[int]

    def waiting(self) -> set[int]:
        """The workers that wait for an answer."""
        return self.workers
