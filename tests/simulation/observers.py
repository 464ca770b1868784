"""What writes the history: observers around methods of the shipped classes. They change nothing.

A method is observed for as long as `observed` lasts. Whose process and whose world it is follows from the thread that
runs it, so that nothing shipped knows of its observers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from tests.simulation import history as h
from tests.simulation.process import Thread
from trainband.data.shared import SharedIterator
from trainband.errors import PeerError
from trainband.ps import checkpointing, client, keeper, service
from trainband.ps.client import JobClient
from trainband.ps.engine import Engine
from trainband.ps.founding import Founder
from trainband.ps.keeper import Keeper
from trainband.ps.members import Members, Presence
from trainband.ps.rules.base import REPLAYED, Drop, Reply
from trainband.ps.rules.base import Begin as BeginEvent
from trainband.ps.rules.base import Join as JoinEvent
from trainband.ps.rules.base import Leave as LeaveEvent
from trainband.ps.seat import Seat
from trainband.ps.service import ParameterService
from trainband.ps.sources import SharedSources
from trainband.ps.succession import Role, Succession
from trainband.train import checkpointer, ending
from trainband.train.checkpointer import Checkpointer
from trainband.wire import messages as m

if TYPE_CHECKING:
    from tests.simulation.world import World


class Observed:
    """What the observers of one process know.

    Attributes:
      world: in which it runs.
      seats: of a ps, by shard.
      why: because of what the rules hear now that a worker is out.
      client: of a worker.
      installing: the seat whose engine is being made.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.seats: dict[int, SeatNotes] = {}
        self.why = "left"
        self.client: JobClient | None = None
        self.installing: SeatNotes | None = None

    def note(self, record: h.Record) -> None:
        """Appends to the history."""
        self.world.note(record)

    @property
    def now(self) -> float:
        """Simulated seconds."""
        return self.world.scheduler.now


class SeatNotes:
    """What is to be remembered of a seat."""

    def __init__(self, seat: Seat, process: Observed) -> None:
        self.seat = seat
        self.process = process
        self.name = process.name
        self.waits: frozenset[int] = frozenset()
        self.promoted_in = -1
        self.role_before = Role.EMPTY
        self.asked: dict[tuple[int, str, int], Any] = {}

    @property
    def shard(self) -> int:
        """Its number."""
        return self.seat.number

    def value(self) -> tuple[h.Update, ...]:
        """What it holds."""
        shard = self.seat.shard
        if shard is None or shard._current is None:  # noqa: SLF001
            return ()
        return self.process.world.values.value(shard._current.blocks)  # noqa: SLF001

    def numbers(self) -> tuple[float, ...]:
        """With which number of the optimizer's state each update was made."""
        shard = self.seat.shard
        if shard is None or shard._current is None:  # noqa: SLF001
            return ()
        return self.process.world.values.numbers(shard._current.blocks)  # noqa: SLF001

    def promoted(self) -> None:
        """It holds the shard alone from now on."""
        book, seat = self.seat.book, self.seat
        if self.promoted_in == book.reign.epoch:
            return
        self.promoted_in = book.reign.epoch
        self.process.note(
            h.Promoted(
                self.process.now,
                seat.number,
                book.reign.epoch,
                seat.version,
                self.name,
                book.lineage,
                book.position,
                self.value(),
            )
        )


def _process() -> Observed:
    thread = getcurrent()
    assert isinstance(thread, Thread)
    observed: Observed = thread.process.observed  # type: ignore[attr-defined]
    return observed


_SEATS = "_notes"
"""The attribute by which what belongs to a seat finds its notes."""


def _notes(one: Any) -> SeatNotes | None:
    return getattr(one, _SEATS, None)


Wrapper = Callable[..., Any]
OBSERVERS: dict[tuple[type, str], Callable[[Callable[..., Any]], Wrapper]] = {}


def around(owner: type, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers `observer(original, self, *args)` for a method."""

    def register(observer: Callable[..., Any]) -> Callable[..., Any]:
        def wrap(original: Callable[..., Any]) -> Wrapper:
            @functools.wraps(original)
            def method(self: Any, *args: Any, **kwargs: Any) -> Any:
                if not isinstance(getcurrent(), Thread):
                    return original(self, *args, **kwargs)
                return observer(original, self, *args, **kwargs)

            return method

        OBSERVERS[owner, name] = wrap
        return observer

    return register


SELDOM = {
    (keeper, "TICK_S"): 0.25,
    (service, "TICK_S"): 0.25,
    (client, "POLL_S"): 0.25,
    (checkpointing, "POLL_S"): 0.1,
    (checkpointer, "POLL_S"): 0.2,
    (ending, "AT_WORK_S"): 0.5,
    (import_module("trainband.data.shared"), "_PAUSE_S"): 0.25,  # the package has a function of that name
}
"""How often simulated tasks look whether something has changed, in seconds: half of all events would be such looks."""


@contextmanager
def observed() -> Iterator[None]:
    """Within, every simulated process writes its history."""
    originals: Mapping[tuple[type, str], Any] = {(owner, name): owner.__dict__[name] for owner, name in OBSERVERS}
    for (owner, name), wrap in OBSERVERS.items():
        setattr(owner, name, wrap(originals[owner, name]))
    looks = {(module, name): getattr(module, name) for module, name in SELDOM}
    for (module, name), seconds in SELDOM.items():
        setattr(module, name, seconds)
    try:
        yield
    finally:
        for (module, name), seconds in looks.items():
            setattr(module, name, seconds)
        for (owner, name), original in originals.items():
            setattr(owner, name, original)


# --- a ps: its seats


@around(ParameterService, "__init__")
def _service_begins(original: Any, self: ParameterService, *args: Any, **kwargs: Any) -> None:
    process = _process()
    process.world.services.append((process, self))
    original(self, *args, **kwargs)


@around(Seat, "__init__")
def _seat_begins(original: Any, self: Seat, shard: int, *args: Any, **kwargs: Any) -> None:
    original(self, shard, *args, **kwargs)
    process = _process()
    process.seats[shard] = notes = SeatNotes(self, process)
    setattr(self, _SEATS, notes)
    process.world.books[id(self.book)] = notes
    setattr(self.sources, _SEATS, notes)


@around(Seat, "install")
def _install(original: Any, self: Seat, *args: Any) -> Any:
    process = _process()
    process.installing = _notes(self)
    try:
        return original(self, *args)
    finally:
        process.installing = None


@around(Engine, "__init__")
def _engine_begins(original: Any, self: Engine, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    setattr(self, _SEATS, _process().installing)


@around(Seat, "initialise")
def _initialise(original: Any, self: Seat, blocks: Any) -> Any:
    result = original(self, blocks)
    notes, process = _notes(self), _process()
    assert notes is not None
    process.note(h.Restored(process.now, self.number, 0, notes.name, ()))
    assert self.engine is not None
    for worker in sorted(self.engine.rule.ledger.workers):
        process.note(h.In(process.now, self.number, worker, "", notes.name))
    return result


@around(Seat, "_tell_rule")
def _tell_rule(original: Any, self: Seat) -> Any:
    notes, process = _notes(self), _process()
    assert notes is not None
    if self.shard is not None and self.shard.initialised:
        process.note(h.Restored(process.now, self.number, self.version, notes.name, notes.value()))
    process.why = "left"
    return original(self)


@around(Seat, "member_left")
def _member_left(original: Any, self: Seat, number: int, *, gone: bool) -> Any:
    process = _process()
    presence = next((one.presence for one in self._members if one.number == number), None)
    process.why = "paused" if not gone else "lost" if presence is Presence.LOST else "left"
    return original(self, number, gone=gone)


@around(Seat, "follow")
def _follow(original: Any, self: Seat, records: Any, old: int, body: Any) -> Any:
    notes, process = _notes(self), _process()
    assert notes is not None
    process.why = "as recorded"
    result = original(self, records, old, body)
    if notes.role_before is Role.LEARNER and self.book.role is Role.STANDBY:
        leader = process.world.keeper_of(self)._leader[0]  # noqa: SLF001
        by = process.world.name_of(self.book.reign.primary, leader)
        process.note(h.Secured(process.now, self.number, notes.name, by, self.book.position))
    return result


@around(Succession, "take")
def _take(original: Any, self: Succession, *args: Any, **kwargs: Any) -> Any:
    notes = _process().world.books.get(id(self))
    if notes is not None:
        notes.role_before = self.role
    return original(self, *args, **kwargs)


@around(Succession, "reign_alone")
def _reign_alone(original: Any, self: Succession) -> Any:
    result = original(self)
    notes = _process().world.books.get(id(self))
    if notes is not None:
        notes.promoted()
    return result


@around(Seat, "take_over")
def _take_over(original: Any, self: Seat) -> Any:
    notes = _notes(self)
    assert notes is not None
    notes.promoted()
    return original(self)


@around(Seat, "hand_over")
def _hand_over(original: Any, self: Seat) -> Any:
    result = original(self)
    _process().world.handed_over()
    return result


@around(Seat, "lesson")
def _lesson(original: Any, self: Seat, incarnation: str) -> Any:
    notes, process = _notes(self), _process()
    assert notes is not None
    result = original(self, incarnation)
    lesson = result[0]
    process.world.lessons[self.number, lesson.lineage, lesson.position] = dict(notes.asked)
    process.note(h.Teaching(process.now, self.number, notes.name, lesson.lineage, lesson.position))
    return result


@around(Seat, "learn")
def _learn(original: Any, self: Seat, lesson: Any, body: Any) -> Any:
    notes, process = _notes(self), _process()
    assert notes is not None
    result = original(self, lesson, body)
    leader = process.world.keeper_of(self)._leader[0]  # noqa: SLF001
    by = process.world.name_of(lesson.reign.primary, leader)
    notes.asked = dict(process.world.lessons[self.number, lesson.lineage, lesson.position])
    process.note(h.Taught(process.now, self.number, notes.name, by, lesson.lineage, lesson.position))
    return result


@around(Keeper, "_took_over")
def _took_over(original: Any, self: Keeper, why: str) -> Any:
    book, seat = self._book, self._seat
    notes, process, position, pupil = _notes(seat), _process(), book.position, book.pupil
    assert notes is not None
    original(self, why)
    if pupil is not None and pupil.in_reign:  # the one that has handed it over may hold it again
        other = process.world.name_of(book.reign.standby, pupil.incarnation)
        process.note(h.Secured(process.now, seat.number, other, notes.name, position))


def _watched(original: Any, self: Keeper) -> Any:
    try:
        return original(self)
    except PeerError:
        raise
    except Exception as exc:
        process = _process()
        process.note(h.Broken(process.now, process.name, f"its keeper: {type(exc).__name__}: {exc}"))
        raise


around(Keeper, "_lead")(_watched)
around(Keeper, "_watch")(_watched)


@around(Keeper, "_cannot_follow")
def _cannot_follow(original: Any, self: Keeper, exc: Exception) -> Any:
    process = _process()
    process.note(h.Broken(process.now, process.name, f"it cannot follow: {exc}"))
    return original(self, exc)


# --- a ps: its rule


@around(Engine, "advance")
def _advance(original: Any, self: Engine, event: Any) -> Any:
    notes, process = _notes(self), _process()
    if notes is not None:
        now, shard, seat = process.now, notes.shard, notes.name
        match event:
            case JoinEvent(worker=worker):
                process.note(h.In(now, shard, worker, "", seat))
            case LeaveEvent(worker=worker):
                process.note(h.Out(now, shard, worker, process.why, seat))
            case BeginEvent(last_version=last_version):
                process.note(h.Begun(now, shard, last_version, seat))
    return original(self, event)


@around(Engine, "_follow")
def _follow_rule(original: Any, self: Engine, instructions: Sequence[Any]) -> Any:
    notes, process = _notes(self), _process()
    if notes is None:
        return original(self, instructions)
    for one in instructions:
        match one:
            case Drop(worker=worker, sequence=sequence, reason=reason):
                held = self._held.get((worker, sequence))
                if held is not None and reason != REPLAYED:
                    (push,) = process.world.values.update_of(held.gradient)
                    process.note(h.Dropped(process.now, notes.shard, push, reason, notes.name))
        # One by one: an answer comes after the update that it follows.
        original(self, [one])
        if isinstance(one, Reply):
            process.note(h.Released(process.now, notes.shard, one.worker, one.sequence, notes.name))
    waits = self.rule.waiting_for()
    if waits != notes.waits:
        notes.waits = waits
        process.note(h.Waits(process.now, notes.shard, waits, notes.name))
    return None


@around(Engine, "_apply")
def _apply(original: Any, self: Engine, keys: Any, scale: float) -> Any:
    result = original(self, keys, scale)
    notes, process = _notes(self), _process()
    if notes is not None:
        blocks = self.shard._current.blocks  # type: ignore[union-attr]  # noqa: SLF001
        update = process.world.values.value(blocks)[-1]
        process.note(h.Applied(process.now, notes.shard, notes.name, self.shard.version, update))
    return result


@around(Seat, "push")
def _push(original: Any, self: Seat, event: Any, gradient: Any) -> Any:
    notes, process = _notes(self), _process()
    assert notes is not None
    if self.reigns and self.engine is not None:
        (push,) = process.world.values.update_of(gradient)
        process.note(h.Arrived(process.now, self.number, push, event.version, notes.name))
    return original(self, event, gradient)


@around(SharedSources, "lease")
def _lease_of(original: Any, self: SharedSources, worker: int, request: Any) -> Any:
    answer = original(self, worker, request)
    notes = _notes(self)
    if notes is not None:
        notes.asked[worker, request.life, request.number] = answer
    return answer


@around(Seat, "lease")
def _lease(original: Any, self: Seat, number: int, request: Any) -> Any:
    notes, process = _notes(self), _process()
    assert notes is not None
    before = notes.asked.get((number, request.life, request.number))
    answer = original(self, number, request)
    incarnation = self._members.get(number).incarnation
    now, position = process.now, self.book.position
    for piece in request.finished if before is None else ():
        process.note(h.Reported(now, number, incarnation, tuple(piece), position, notes.name))
    if not request.want and before is None:
        process.note(h.GivenBack(now, number, incarnation, position, notes.name))
    if answer.kind == "piece" and answer != before:
        piece = answer.epoch, answer.piece
        process.note(h.Leased(now, number, incarnation, piece, answer.start, answer.stop, position, notes.name))
    return answer


@around(Seat, "steer")
def _steer(original: Any, self: Seat, leaf: int, value: float) -> Any:
    result = original(self, leaf, value)
    notes, process = _notes(self), _process()
    assert notes is not None
    process.note(h.Steered(process.now, self.number, value, self.version, notes.name))
    return result


# --- a ps: its members


def _note_heard(number: int) -> None:
    process = _process()
    for notes in process.seats.values():
        process.note(h.Heard(process.now, notes.shard, number, notes.name))


@around(Members, "heard")
def _heard(original: Any, self: Members, member: Any, now: float) -> Any:
    _note_heard(member.number)
    return original(self, member, now)


@around(Members, "join")
def _join(original: Any, self: Members, *args: Any) -> Any:
    result = original(self, *args)
    _note_heard(result[0].number)
    return result


@around(ParameterService, "_sample")
def _sample(original: Any, self: ParameterService) -> Any:
    process = _process()
    for notes in process.seats.values():
        engine = notes.seat.engine
        if engine is not None and notes.seat.reigns and (waits := engine.rule.waiting_for()):
            process.note(h.Looked(process.now, notes.shard, waits, notes.name))
    return original(self)


@around(ParameterService, "_settle")
def _settle(original: Any, self: ParameterService, seat: Seat, position: int, given_up: Any) -> Any:
    result = original(self, seat, position, given_up)
    if seat.number in self._keepers:
        notes, process, book = _notes(seat), _process(), seat.book
        assert notes is not None
        pupil, holders = book.pupil, {notes.name}
        # A standby stays one while it is to be told that another worker decides from now on.
        may_succeed = book.secure or (book._arbiter_changes and not book.bereft)  # noqa: SLF001
        if pupil is not None and may_succeed and pupil.taken >= position:
            holders.add(process.world.name_of(book.other, pupil.incarnation))
        process.note(h.Answered(process.now, seat.number, notes.name, book.lineage, position, frozenset(holders)))
    return result


# --- a worker


@around(JobClient, "__init__")
def _client_begins(original: Any, self: JobClient, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    _process().client = self


@around(JobClient, "_receive")
def _receive(original: Any, self: JobClient, link: Any, what: str) -> Any:
    answer, blocks = original(self, link, what)
    if what == "the answer to a push":
        process = _process()
        key = h.PushKey(link.worker, self._incarnation, self._sequence)
        applied, before = answer.outcome == m.APPLIED, answer.detail == REPLAYED
        process.note(h.Acknowledged(process.now, link.index, key, applied, answer.version, before))
    return answer, blocks


@around(Founder, "define")
def _define(original: Any, self: Founder, link: Any, job: str, *, alone: bool = False) -> Any:
    if not alone:
        _process().world.begin_anew()
    return original(self, link, job, alone=alone)


@around(SharedIterator, "_advance")
def _advance_data(original: Any, self: SharedIterator, marks: Any) -> Any:
    marks, process = list(marks), _process()
    before = [(hold, hold.unit) for hold, _ in marks]
    result = original(self, marks)
    for hold, unit in before:
        if hold.unit > unit:
            process.note(h.Trained(process.now, -1, process.name, hold.piece, unit, hold.unit))
    return result


@around(JobClient, "leave_luggage")
def _leave_luggage(original: Any, self: JobClient, data: bytes, behind: int = 0) -> Any:
    result = original(self, data, behind)
    process = _process()
    process.note(h.Kept(process.now, self._task, self._incarnation, self._sequence - behind, data))
    return result


@around(JobClient, "find_luggage")
def _find_luggage(original: Any, self: JobClient) -> Any:
    data = original(self)
    process = _process()
    process.note(h.Found(process.now, self._task, self._incarnation, data))
    return data


@around(Checkpointer, "_commit")
def _commit(original: Any, self: Checkpointer, order: Any, parts: Any) -> Any:
    result = original(self, order, parts)
    process = _process()
    complete = order.about.complete
    process.note(
        h.Committed(process.now, process.name, parts.global_step, tuple(p.version for p in parts.parts), complete)
    )
    return result
