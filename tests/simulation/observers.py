"""What writes the history: observers around methods of the shipped classes. They change nothing.

A method is observed for as long as `observed` lasts. Whose process and whose world it is follows from the thread that
runs it, so that nothing shipped knows of its observers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from tests.simulation import history as h
from tests.simulation.job import IDS
from tests.simulation.process import Thread
from tests.simulation.values import Values
from trainband.checkpoint import CheckpointDirectory, Manifest
from trainband.data import shared_batches
from trainband.data.visits import Visits
from trainband.errors import PeerError
from trainband.job.shared_sources import SharedSources
from trainband.ps.membership.members import Members, Presence
from trainband.ps.replication import snapshots
from trainband.ps.replication.failover import Failover, Role
from trainband.ps.replication.replicator import replicator
from trainband.ps.replication.replicator.primary_watch import PrimaryWatch
from trainband.ps.replication.replicator.recruiter import Recruiter
from trainband.ps.replication.replicator.role_changes import RoleChanges
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.rules.base import Begin as BeginEvent
from trainband.ps.rules.base import Drop, Reply
from trainband.ps.rules.base import Join as JoinEvent
from trainband.ps.rules.base import Leave as LeaveEvent
from trainband.ps.service import lifecycle
from trainband.ps.service.service import ParameterService
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.service.status import StatusReporter
from trainband.ps.shard.updater import Updater
from trainband.ps.tables.row_chunk import RowChunk
from trainband.ps.worker import membership, shard_finder
from trainband.ps.worker.checkpoints import WorkerCheckpoints
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.exchange import Exchanger
from trainband.ps.worker.shard_definer import ShardDefiner
from trainband.train import checkpointer, ending
from trainband.train.checkpointer import Checkpointer
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r

if TYPE_CHECKING:
    from tests.simulation.world import World


class Observed:
    """What the observers of one process know.

    Attributes:
      world: in which it runs.
      replicas: of a ps, by shard.
      why: because of what the rules hear now that a worker is out.
      client: of a worker.
      installing: the replica whose engine is being made.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.replicas: dict[int, ReplicaNotes] = {}
        self.why = "left"
        self.client: JobClient | None = None
        self.installing: ReplicaNotes | None = None

    def record(self, record: h.Record) -> None:
        """Appends to the history."""
        self.world.record(record)

    @property
    def now(self) -> float:
        """Simulated seconds."""
        return self.world.scheduler.now


class ReplicaNotes:
    """What is to be remembered of a replica."""

    def __init__(self, replica: ShardReplica, process: Observed) -> None:
        self.replica = replica
        self.process = process
        self.name = process.name
        self.waits: frozenset[int] = frozenset()
        self.promoted_in = -1
        self.role_before = Role.EMPTY
        self.asked: dict[tuple[int, str, int], Any] = {}

    @property
    def shard(self) -> int:
        """Its number."""
        return self.replica.number

    def value(self) -> tuple[h.Update, ...]:
        """What it holds."""
        shard = self.replica.shard
        if shard is None or shard._current is None:  # noqa: SLF001
            return ()
        return self.process.world.values.value(shard._current.blocks)  # noqa: SLF001

    def numbers(self) -> tuple[float, ...]:
        """With which number of the optimizer's state each update was made."""
        shard = self.replica.shard
        if shard is None or shard._current is None:  # noqa: SLF001
            return ()
        return self.process.world.values.numbers(shard._current.blocks)  # noqa: SLF001

    def promoted(self) -> None:
        """It holds the shard alone from now on."""
        failover, replica = self.replica.failover, self.replica
        if self.promoted_in == failover.term.number:
            return
        self.promoted_in = failover.term.number
        self.process.record(
            h.Promoted(
                self.process.now,
                replica.number,
                failover.term.number,
                replica.version,
                self.name,
                failover.lineage,
                failover.position,
                self.value(),
            )
        )


def _process() -> Observed:
    thread = getcurrent()
    assert isinstance(thread, Thread)
    observed: Observed = thread.process.observed  # type: ignore[attr-defined]
    return observed


_SEATS = "_notes"
"""The attribute by which what belongs to a replica finds its notes."""


def _notes_of(one: Any) -> ReplicaNotes | None:
    return getattr(one, _SEATS, None)


Wrapper = Callable[..., Any]
OBSERVERS: dict[tuple[type | ModuleType, str], Callable[[Callable[..., Any]], Wrapper]] = {}


def around(owner: type | ModuleType, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers `observer(original, self, *args)` for a method, or for a function of a module."""

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
    (replicator, "TICK_S"): 0.25,
    (lifecycle, "TICK_S"): 0.25,
    (membership, "POLL_S"): 0.25,
    (shard_finder, "POLL_S"): 0.25,
    (checkpointer, "POLL_S"): 0.2,
    (ending, "AT_WORK_S"): 0.5,
    (shared_batches, "_PAUSE_S"): 0.25,
}
"""How often simulated tasks look whether something has changed, in seconds: half of all events would be such looks."""


@contextmanager
def observed() -> Iterator[None]:
    """Within, every simulated process writes its history."""
    originals: Mapping[tuple[type | ModuleType, str], Any] = {
        (owner, name): owner.__dict__[name] for owner, name in OBSERVERS
    }
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


# --- a ps: its replicas


@around(ParameterService, "__init__")
def _service_begins(original: Any, self: ParameterService, *args: Any, **kwargs: Any) -> None:
    process = _process()
    process.world.services.append((process, self))
    original(self, *args, **kwargs)


@around(ShardReplica, "__init__")
def _replica_begins(original: Any, self: ShardReplica, shard: int, *args: Any, **kwargs: Any) -> None:
    original(self, shard, *args, **kwargs)
    process = _process()
    process.replicas[shard] = notes = ReplicaNotes(self, process)
    setattr(self, _SEATS, notes)
    process.world.failovers[id(self.failover)] = notes
    setattr(self.sources, _SEATS, notes)


@around(ShardReplica, "install")
def _install(original: Any, self: ShardReplica, *args: Any) -> Any:
    process = _process()
    process.installing = _notes_of(self)
    try:
        return original(self, *args)
    finally:
        process.installing = None


@around(Updater, "__init__")
def _updater_begins(original: Any, self: Updater, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    setattr(self, _SEATS, _process().installing)


@around(ShardReplica, "initialise")
def _initialise(original: Any, self: ShardReplica, blocks: Any) -> Any:
    result = original(self, blocks)
    notes, process = _notes_of(self), _process()
    assert notes is not None
    process.record(h.Restored(process.now, self.number, 0, notes.name, ()))
    for worker in sorted(self.require_updater().counted()):
        process.record(h.In(process.now, self.number, worker, "", notes.name))
    return result


@around(Updater, "start")
def _start(original: Any, self: Updater, *args: Any) -> Any:
    notes, process = _notes_of(self), _process()
    assert notes is not None
    if self.shard.initialised:
        process.record(h.Restored(process.now, notes.shard, self.shard.version, notes.name, notes.value()))
    process.why = "left"
    return original(self, *args)


@around(ShardReplica, "member_left")
def _member_left(original: Any, self: ShardReplica, number: int, *, gone: bool) -> Any:
    notes, process = _notes_of(self), _process()
    assert notes is not None
    members = notes.replica._members  # noqa: SLF001
    presence = next((one.presence for one in members if one.number == number), None)
    process.why = "paused" if not gone else "lost" if presence is Presence.LOST else "left"
    return original(self, number, gone=gone)


@around(ShardReplica, "follow")
def _follow(original: Any, self: ShardReplica, records: Any, old: int, body: Any) -> Any:
    notes, process = _notes_of(self), _process()
    assert notes is not None
    process.why = "as recorded"
    result = original(self, records, old, body)
    if notes.role_before is Role.LEARNER and self.failover.role is Role.STANDBY:
        primary = process.world.replicator_of(self).other.primary[0]
        by = process.world.name_of(self.failover.term.primary, primary)
        process.record(h.Secured(process.now, self.number, notes.name, by, self.failover.position))
    return result


@around(Failover, "receive")
def _receive_records(original: Any, self: Failover, *args: Any, **kwargs: Any) -> Any:
    notes = _process().world.failovers.get(id(self))
    if notes is not None:
        notes.role_before = self.role
    return original(self, *args, **kwargs)


@around(Failover, "lead_alone")
def _lead_alone(original: Any, self: Failover) -> Any:
    result = original(self)
    notes = _process().world.failovers.get(id(self))
    if notes is not None:
        notes.promoted()
    return result


@around(ShardReplica, "take_over")
def _take_over(original: Any, self: ShardReplica) -> Any:
    notes = _notes_of(self)
    assert notes is not None
    notes.promoted()
    return original(self)


@around(Failover, "fail_back")
def _fail_back(original: Any, self: Failover) -> Any:
    result = original(self)
    _process().world.failed_back()
    return result


@around(snapshots, "take_snapshot")
def _install_record(original: Any, replica: ShardReplica, incarnation: str) -> Any:
    notes, process = _notes_of(replica), _process()
    assert notes is not None
    result = original(replica, incarnation)
    install = result[0]
    process.world.installs[replica.number, install.lineage, install.position] = dict(notes.asked)
    process.record(h.Teaching(process.now, replica.number, notes.name, install.lineage, install.position))
    return result


@around(snapshots, "install_snapshot")
def _install_of_snapshot(original: Any, replica: ShardReplica, install: Any, body: Any) -> Any:
    notes, process = _notes_of(replica), _process()
    assert notes is not None
    result = original(replica, install, body)
    primary = process.world.replicator_of(replica).other.primary[0]
    by = process.world.name_of(install.term.primary, primary)
    notes.asked = dict(process.world.installs[replica.number, install.lineage, install.position])
    process.record(h.Taught(process.now, replica.number, notes.name, by, install.lineage, install.position))
    return result


@around(RoleChanges, "took_over")
def _took_over(original: Any, self: RoleChanges, why: str) -> Any:
    failover, replica = self._failover, self._replica
    notes, process, position, follower = _notes_of(replica), _process(), failover.position, failover.log.follower
    assert notes is not None
    original(self, why)
    if follower is not None and follower.is_standby:  # the one that has handed it over may hold it again
        other = process.world.name_of(failover.term.standby, follower.incarnation)
        process.record(h.Secured(process.now, replica.number, other, notes.name, position))


def _watched(original: Any, self: Recruiter | PrimaryWatch) -> Any:
    try:
        return original(self)
    except PeerError:
        raise
    except Exception as exc:
        process = _process()
        process.record(h.Broken(process.now, process.name, f"its replicator: {type(exc).__name__}: {exc}"))
        raise


around(Recruiter, "poll")(_watched)
around(PrimaryWatch, "poll")(_watched)


@around(RoleChanges, "cannot_follow")
def _cannot_follow(original: Any, self: RoleChanges, exc: Exception) -> Any:
    process = _process()
    process.record(h.Broken(process.now, process.name, f"it cannot follow: {exc}"))
    return original(self, exc)


# --- a ps: its rule


@around(Updater, "advance")
def _advance(original: Any, self: Updater, event: Any) -> Any:
    notes, process = _notes_of(self), _process()
    if notes is not None:
        now, shard, replica = process.now, notes.shard, notes.name
        match event:
            case JoinEvent(worker=worker):
                process.record(h.In(now, shard, worker, "", replica))
            case LeaveEvent(worker=worker):
                process.record(h.Out(now, shard, worker, process.why, replica))
            case BeginEvent(last_version=last_version):
                process.record(h.Begun(now, shard, last_version, replica))
    return original(self, event)


@around(Updater, "_follow")
def _follow_rule(original: Any, self: Updater, instructions: Sequence[Any]) -> Any:
    notes, process = _notes_of(self), _process()
    if notes is None:
        return original(self, instructions)
    for one in instructions:
        match one:
            case Drop(worker=worker, sequence=sequence, reason=reason):
                held = self._held.get((worker, sequence))
                if held is not None:
                    (push,) = process.world.values.update_of(held.gradient)
                    process.record(h.Dropped(process.now, notes.shard, push, reason, notes.name))
        # One by one: an answer comes after the update that it follows.
        original(self, [one])
        if isinstance(one, Reply):
            process.record(h.Released(process.now, notes.shard, one.worker, one.sequence, notes.name))
    waits = self.rule.waiting_for()
    if waits != notes.waits:
        notes.waits = waits
        process.record(h.Waits(process.now, notes.shard, waits, notes.name))
    return None


@around(Updater, "_apply")
def _apply(original: Any, self: Updater, keys: Any, scale: float) -> Any:
    result = original(self, keys, scale)
    notes, process = _notes_of(self), _process()
    if notes is not None:
        blocks = self.shard._current.blocks  # type: ignore[union-attr]  # noqa: SLF001
        updates = process.world.values.value(blocks)
        update = updates[-1]
        for rows in self.shard.tables.copies():
            wrong = _wrong_rows(rows, process.world.values, updates)
            if wrong:
                process.record(h.Broken(process.now, process.name, wrong))
        process.record(h.Applied(process.now, notes.shard, notes.name, self.shard.version, update))
    return result


def _wrong_rows(rows: RowChunk, values: Values, updates: Sequence[h.Update]) -> str:
    """How the rows differ from the pushes that the params are made of, each applied once; empty if they do not."""
    expected = {values.gradient((push,)) for update in updates for push in update}
    found = {number // IDS for number in rows.ids.tolist()}
    if found == expected and (rows.uses == 1).all():
        return ""
    return (
        f"the table lacks the pushes {expected - found} of the params, has {found - expected} that they lack, and "
        f"applied them {set(rows.uses.tolist())} times"
    )


@around(ShardReplica, "push")
def _push(original: Any, self: ShardReplica, event: Any, gradient: Any) -> Any:
    notes, process = _notes_of(self), _process()
    assert notes is not None
    if self.is_primary and self.updater is not None:
        (push,) = process.world.values.update_of(gradient)
        process.record(h.Arrived(process.now, notes.shard, push, event.version, notes.name))
    return original(self, event, gradient)


@around(SharedSources, "lease")
def _lease_of(original: Any, self: SharedSources, worker: int, request: Any) -> Any:
    answer = original(self, worker, request)
    notes = _notes_of(self)
    if notes is not None:
        notes.asked[worker, request.iterator, request.number] = answer
    return answer


@around(ShardReplica, "record")
def _record(original: Any, self: ShardReplica, record: r.LogRecord, blocks: Any = ()) -> Any:
    notes, process = _notes_of(self), _process()
    assert notes is not None
    if isinstance(record, r.Leased):
        return _lease(original, notes, record)
    result = original(self, record, blocks)
    if isinstance(record, r.Steered):
        process.record(h.Steered(process.now, notes.shard, record.value, self.version, notes.name))
    return result


def _lease(original: Any, notes: ReplicaNotes, leased: r.Leased) -> Any:
    number, request, process = leased.worker, leased.request, notes.process
    before = notes.asked.get((number, request.iterator, request.number))
    answer = original(notes.replica, leased)
    incarnation = notes.replica._members.get(number).incarnation  # noqa: SLF001
    now, position = process.now, notes.replica.failover.position
    for piece in request.finished if before is None else ():
        process.record(h.Reported(now, number, incarnation, piece, position, notes.name))
    if not request.want and before is None:
        process.record(h.GivenBack(now, number, incarnation, position, notes.name))
    if answer.kind == "piece" and answer != before:
        piece = answer.epoch, answer.piece
        process.record(h.Leased(now, number, incarnation, piece, answer.start, answer.stop, position, notes.name))
    return answer


# --- a ps: its members


def _record_contact(number: int) -> None:
    process = _process()
    for notes in process.replicas.values():
        process.record(h.Heard(process.now, notes.shard, number, notes.name))


@around(Members, "record_contact")
def _contact(original: Any, self: Members, member: Any, now: float) -> Any:
    _record_contact(member.number)
    return original(self, member, now)


@around(Members, "join")
def _join(original: Any, self: Members, *args: Any) -> Any:
    result = original(self, *args)
    _record_contact(result[0].number)
    return result


@around(StatusReporter, "sample")
def _sample(original: Any, self: StatusReporter) -> Any:
    process = _process()
    for notes in process.replicas.values():
        updater = notes.replica.updater
        if updater is not None and notes.replica.is_primary and (waits := updater.rule.waiting_for()):
            process.record(h.Looked(process.now, notes.shard, waits, notes.name))
    return original(self)


@around(ShardReplicas, "settle")
def _settle(original: Any, self: ShardReplicas, replica: ShardReplica, position: int, given_up: Any) -> Any:
    result = original(self, replica, position, given_up)
    if replica.number in self.replicators:
        notes, process, failover = _notes_of(replica), _process(), replica.failover
        assert notes is not None
        follower, holders = failover.log.follower, {notes.name}
        # A standby stays one while it is to be told that another worker decides from now on.
        may_succeed = failover.secure or (failover._arbiter_changes and not failover.log.lacks_standby)  # noqa: SLF001
        if follower is not None and may_succeed and follower.confirmed >= position:
            holders.add(process.world.name_of(failover.other, follower.incarnation))
        process.record(
            h.Answered(process.now, replica.number, notes.name, failover.lineage, position, frozenset(holders))
        )
    return result


# --- a worker


@around(JobClient, "__init__")
def _client_begins(original: Any, self: JobClient, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    _process().client = self


@around(Exchanger, "_receive")
def _receive(original: Any, self: Exchanger, link: Any, what: str) -> Any:
    answer, blocks = original(self, link, what)
    if what == "the answer to a push":
        process = _process()
        key = h.PushKey(link.worker, self._membership.incarnation, self._membership.sequence)
        process.record(h.Acknowledged(process.now, link.index, key, answer.outcome == m.APPLIED, answer.version))
    return answer, blocks


@around(ShardDefiner, "define")
def _define(original: Any, self: ShardDefiner, link: Any, job: str, *, alone: bool = False) -> Any:
    if not alone:
        _process().world.restart_all()
    return original(self, link, job, alone=alone)


@around(Visits, "_advance")
def _advance_data(original: Any, self: Visits, marks: Any) -> Any:
    marks, process = list(marks), _process()
    before = [(hold, hold.unit) for hold, _ in marks]
    result = original(self, marks)
    for hold, unit in before:
        if hold.unit > unit:
            process.record(h.Trained(process.now, -1, process.name, hold.piece, unit, hold.unit))
    return result


@around(WorkerCheckpoints, "send_worker_state")
def _send_worker_state(original: Any, self: WorkerCheckpoints, data: bytes, behind: int = 0) -> Any:
    result = original(self, data, behind)
    process, membership = _process(), self._membership
    sequence = membership.sequence - behind
    process.record(h.Kept(process.now, membership.task, membership.incarnation, sequence, data))
    return result


@around(WorkerCheckpoints, "find_worker_state")
def _find_worker_state(original: Any, self: WorkerCheckpoints) -> Any:
    found = original(self)
    data = b"" if found is None else found.to_bytes()
    process = _process()
    process.record(h.Found(process.now, self._membership.task, self._membership.incarnation, data))
    return found


@around(CheckpointDirectory, "commit")
def _commit(original: Any, self: CheckpointDirectory, partial: Any, manifest: Manifest) -> Any:
    result = original(self, partial, manifest)
    process = _process()
    versions = tuple(part.version for part in manifest.parts)
    process.record(h.Committed(process.now, process.name, manifest.global_step, versions, manifest.complete))
    return result


@around(Checkpointer, "_commit")
def _committed(original: Any, self: Checkpointer, order: Any, parts: Any) -> Any:
    result = original(self, order, parts)  # which its process may not live to see the end of
    _process().world.committed()
    return result
