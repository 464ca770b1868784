"""A replica: one ps's part in one shard. It holds the values, or follows those of the ps that does.

Not thread-safe: the service holds its lock around every call.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainband.cluster import Cluster
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import ProtocolError, RefusalCode, Refused
from trainband.model.layout import JobLayout
from trainband.ps.description import placement_of
from trainband.ps.membership.members import GUESTS, Member, Members
from trainband.ps.replication.failover import Failover, Role
from trainband.ps.rules.base import Begin as BeginEvent
from trainband.ps.rules.base import Join as JoinEvent
from trainband.ps.rules.base import Leave as LeaveEvent
from trainband.ps.rules.base import Push as PushEvent
from trainband.ps.rules.registry import rule_of
from trainband.ps.server.program import CompileProgram, Program, UpdateProgram
from trainband.ps.server.saver import ShardSaver
from trainband.ps.server.shard import Shard, Snapshot
from trainband.ps.server.sources import SharedSources
from trainband.ps.server.updater import PendingPush, Updater
from trainband.ps.statistics import CheckpointStatus
from trainband.runtime import Lock, Runtime
from trainband.wire import messages as m
from trainband.wire import replication as r
from trainband.wire.codec import decode_any

Blocks = Sequence[NDArray[Any]]


class ShardReplica:
    """One shard, on one ps.

    Args:
      shard: its number.
      cluster: and which of its tasks this ps is.
      members: who is in the job, as this ps knows.
      lock: the service's.
      incarnation: of this ps task.
      runtime: this task's.
      compile_program: makes what runs an update program.
    """

    def __init__(
        self,
        shard: int,
        cluster: Cluster,
        members: Members,
        lock: Lock,
        incarnation: str,
        runtime: Runtime,
        compile_program: CompileProgram,
    ) -> None:
        self.number = shard
        self.failover = Failover(shard, cluster.task.index)
        self.define: m.Define | None = None
        self.job = ""
        """Which job this is."""
        self.layout: JobLayout | None = None
        self.updater: Updater | None = None
        self.sources = SharedSources()
        self.checkpoint: CheckpointStatus | None = None
        self.fit = 0
        self.trainings: tuple[int, ...] = ()
        self.last_version = 0
        self.invited_at = float("-inf")
        """When the shard's primary last asked this replica to follow it, by the service's clock."""
        self.held_since = float("-inf")
        """When this ps took the shard over from another one, by the service's clock."""
        self._cluster = cluster
        self._task = str(cluster.task)
        self._members = members
        self._lock = lock
        self._incarnation = incarnation
        self._runtime = runtime
        self._compile_program = compile_program
        self._program: Program | None = None
        self._compiling = runtime.lock()
        self._compiled: tuple[m.Define, Program] | None = None
        self._saver: ShardSaver | None = None

    # --- what it knows

    @property
    def shard(self) -> Shard | None:
        """The values, where the model is defined."""
        return self.updater.shard if self.updater is not None else None

    @property
    def description(self) -> m.Description | None:
        """The model, where it is defined."""
        return self.define.description if self.define is not None else None

    @property
    def is_primary(self) -> bool:
        """Whether this ps holds the shard, and values are there."""
        return self.failover.holds

    @property
    def version(self) -> int:
        """How many updates the shard has applied."""
        return self.shard.version if self.shard is not None else 0

    @property
    def complete(self) -> bool:
        """Whether all updates that were asked for are made."""
        return self.fit > 0 and self.shard is not None and self.version >= self.last_version

    def deadlocked(self, blocked_by: Mapping[int, Collection[int]]) -> set[int]:
        """The workers that are waited for here, and wait elsewhere for one that waits here: none of them can go on.

        `blocked_by`: of each worker, those that it waits for at other ps.
        """
        if self.updater is None or not self.is_primary:
            return set()
        waiting = self.updater.waiting()
        found = set()
        for worker in self.updater.rule.waiting_for():
            seen, front = {worker}, [worker]
            while front:
                front = [other for one in front for other in blocked_by.get(one, ()) if other not in seen]
                seen.update(front)
            if seen & waiting - {worker}:
                found.add(worker)
        return found

    @property
    def may_fail_back(self) -> bool:
        """Whether another replica may be given the shard: in a training, with no checkpoint under way."""
        live = {member.number for member in self._members.live()}
        return self.fit > 0 and not self.complete and not (self._saver is not None and self._saver.is_busy(live))

    def sees_the_same(self, other: m.JobState) -> bool:
        """Whether another ps has the same workers in the job as this one, and those at work that are here."""
        return self._members.are(other.live, other.at_work)

    @property
    def deserted(self) -> bool:
        """Whether the job is done, and everybody has left."""
        return self.complete and not self._members.live()

    @property
    def name(self) -> str:
        """For messages."""
        return f"shard {self.number}"

    def state(self) -> r.ReplicaState:
        """As a record."""
        failover = self.failover
        return r.ReplicaState(
            self.number,
            failover.me,
            failover.known_as.value,
            failover.lineage,
            failover.term,
            failover.position,
            self.version,
            self._incarnation,
            self._runtime.host,
            failover.behind,
            failover.asks(),
            self.fit,
        )

    @property
    def is_bootstrapping(self) -> bool:
        """Whether the chief has defined the model here, and has yet to give it its values."""
        return self.updater is not None and self.failover.role is Role.EMPTY and self.invited_at < 0

    def waiting_for(self) -> tuple[str, ...]:
        """The tasks without whose word somebody does not go on."""
        if self.updater is None or not self.is_primary:
            return ()
        workers = tuple(self._members.name(number) for number in sorted(self.updater.rule.waiting_for()))
        return (*workers, f"ps:{self.failover.other}") if self.failover.lacks_standby else workers

    def joined(self, member: Member) -> m.Joined:
        """What a worker that joins is told."""
        return m.Joined(
            worker=member.number,
            lease_s=self._members.lease_s,
            defined=self.updater is not None,
            initialised=self.is_primary,
            last_sequence=self.updater.rule.ledger.seen.get(member.number, 0) if self.updater else 0,
            trainings=self.trainings,
            life=self.failover.lineage if self.is_primary else "",
            fit=self.fit,
            protected=self.failover.secure,
            term=self.failover.term.number,
            job=self.job,
            empty=self.failover.role is Role.EMPTY,
        )

    def require_updater(self) -> Updater:
        """The shard with its rule. Raises `Refused` where no model is defined."""
        if self.updater is None:
            raise Refused(
                f"{self._task} has no model yet: it waits for the chief to define one.", RefusalCode.NOT_READY
            )
        return self.updater

    def require_primary(self) -> Updater:
        """As `require_engine`, where this ps holds the shard."""
        self.require_held()
        return self.require_updater()

    def require_held(self) -> None:
        """Raises `Refused` where there are values, and another ps has them."""
        if self.failover.lineage and not self.is_primary:
            raise Refused(f"{self._task} does not hold {self.name} (any more).", RefusalCode.MOVED)

    @property
    def saver(self) -> ShardSaver | None:
        """Saves and restores, where the model is defined."""
        return self._saver

    def require_saver(self) -> ShardSaver:
        """As `saver`. Raises `Refused` where no model is defined."""
        self.require_primary()
        assert self._saver is not None
        return self._saver

    # --- its beginning

    def compile(self, define: m.Define, sender: str) -> Program:
        """The update program of a definition. Takes long, and needs no lock.

        Raises:
          Refused, ProtocolError, ModelError: the definition does not hold together.
        """
        layout = JobLayout.of(placement_of(define.description))
        if not 0 <= define.ps < len(layout.shards):
            raise Refused(f"the definition has {len(layout.shards)} ps, but calls this one number {define.ps}.")
        with self._compiling:  # one who asks again, because it took so long, finds it done
            if self._compiled is None or not _same(self._compiled[0], define):
                self._compiled = (define, self._compile(define, layout, sender))
            return self._compiled[1]

    def _compile(self, define: m.Define, layout: JobLayout, sender: str) -> Program:
        trained = [block.trained for block in layout.shards[define.ps].blocks]
        program = self._compile_program(UpdateProgram(define.initialise, define.update, define.jax), sender, trained)
        _check_contents(define, program.state_shapes)
        rule_of(define.description.rule)
        return program

    def install(self, define: m.Define, program: Program) -> None:
        """Begins with a model that has no values yet."""
        description = define.description
        layout = JobLayout.of(placement_of(description))
        shard = Shard(layout.shards[define.ps], program)
        compensation = float(description.rule.get("delay_compensation") or 0.0)
        workers = self._cluster.spec.workers
        chief = workers.index(self._cluster.spec.chief)
        has_state = any(not variable.trained for variable in description.variables)
        state_of = chief if has_state and description.state_merge == "chief" else None
        rule = rule_of(description.rule).start(0, 0 if define.alone else len(workers))
        self.define, self.layout, self._program = define, layout, program
        self.job = define.job
        if description.standbys:
            self.failover.other = self._other(len(layout.shards))
        if self.updater is not None:
            self.updater.free_all()
        self.updater = Updater(shard, rule, compensation, state_of, self._runtime)
        self._saver = ShardSaver(
            shard,
            define.state,
            (define.ps, len(layout.shards)),
            self._lock,
            runtime=self._runtime,
            seen=self._seen_pushes if define.ps == 0 else dict,
            sources=self.sources.record,
        )
        self.updater.after_update = self._saver.after_update
        self._tell_rule()

    def _other(self, count: int) -> int:
        """The ps with the other replica: each shard's standby is on the ps after its own."""
        after = (self.number + 1) % count
        return after if self.failover.me == self.number else self.number

    def initialise(self, blocks: Blocks) -> None:
        """Takes the first values."""
        updater = self.require_updater()
        updater.shard.initialise(blocks)
        self.require_new_saver().forget_reading()
        self.failover.bootstrap(self._runtime.token())

    def adopt(self, adopt: m.Adopt) -> None:
        """Takes the values of a checkpoint that were read. Repeated orders change nothing."""
        updater = self.require_updater()
        if updater.shard.initialised:
            return
        workers = len(self._cluster.spec.workers)
        self.require_new_saver().adopt(adopt)
        self.sources.restore(adopt.sources, workers)
        assert self.description is not None
        updater.rule = rule_of(self.description.rule).start(adopt.version, 0 if adopt.alone else workers)
        self._tell_rule()
        self.failover.bootstrap(self._runtime.token())

    def require_new_saver(self) -> ShardSaver:
        """That of a shard which has no values yet, too."""
        self.require_updater()
        assert self._saver is not None
        return self._saver

    def forget(self) -> None:
        """Gives up a shard that another ps holds: the next to define or to teach it begins afresh."""
        if self.updater is not None:
            self.updater.free_all()
        self.updater = self._saver = None
        self.sources.take_over({})
        self.fit, self.last_version, self.trainings = 0, 0, ()

    # --- what changes it. Each is a record of the log.

    def member_joined(self, number: int) -> None:
        """A worker is in the job."""
        if self.updater is not None and (self.is_primary or self.failover.role is Role.EMPTY):
            self.updater.advance(JoinEvent(number))
            self._log(r.Joined(number))

    def member_left(self, number: int, *, gone: bool) -> None:
        """Nobody waits for a worker any more; if it is `gone`, what it had leased goes to others."""
        if not (self.is_primary or self.failover.role is Role.EMPTY):
            return
        self.failover.keep(lambda record, gradient: _owned(record, gradient, number))
        if gone:
            self.sources.release(number)
            self._log(r.Released(number))
        if self.updater is not None:
            self.updater.advance(LeaveEvent(number))
            self._log(r.Left(number))

    def begin(self, fit: int, last_version: int, trainings: tuple[int, ...]) -> None:
        """Wants updates until this version."""
        self.fit, self.last_version, self.trainings = fit, last_version, trainings
        self.require_updater().advance(BeginEvent(last_version))
        self._log(r.Began(fit, last_version, trainings))

    def push(self, event: PushEvent, gradient: Blocks) -> PendingPush:
        """A finite gradient, borrowed until it is answered."""
        pending = self.require_primary().push(event, gradient)
        self._log(r.Pushed(event.worker, event.sequence, event.version, event.examples), gradient)
        return pending

    def steer(self, leaf: int, value: float) -> None:
        """Sets a number of the optimizer's state."""
        self.require_primary().shard.set_number(leaf, value)
        self._log(r.Steered(leaf, value))

    def lease(self, number: int, request: LeaseRequest) -> LeaseAnswer:
        """The next piece of a shared data source."""
        answer = self.sources.lease(number, request)
        self._log(r.Leased(number, request))
        return answer

    def free_reserved(self, number: int) -> None:
        """Gives to others what a checkpoint has reserved for a worker that has paused, and asks for no more."""
        if self.sources.release_reserved(number):
            self._log(r.Released(number, reserved=True))

    def free_pieces(self, live: Collection[int]) -> None:
        """Gives to others what is reserved for workers that have not come."""
        for number in sorted(self.sources.holders() - set(live)):
            self.sources.release(number)
            self._log(r.Released(number))

    def keep_worker_state(self, worker_state: m.LeftWorkerState) -> None:
        """What a worker must find again."""
        saver = self.require_saver()
        if worker_state.worker >= GUESTS:
            return  # no later job has a place for it
        saver.keep(worker_state)
        self._log(r.Kept(worker_state.worker, worker_state.sequence, worker_state.data))

    def _log(self, record: r.LogRecord, blocks: Blocks = ()) -> None:
        self.failover.append(record, blocks)

    def _tell_rule(self) -> None:
        """Tells a rule that begins who is in the job. One that has come and gone already is waited for by nobody."""
        updater = self.require_updater()
        for known in self._members:
            counts = known.live and not known.paused
            updater.advance(JoinEvent(known.number) if counts else LeaveEvent(known.number))

    def _seen_pushes(self) -> dict[int, int]:
        """How many pushes of each worker in the job have become what they will: those of a step under way have not."""
        updater = self.require_updater()
        seen = updater.rule.ledger.seen
        return {
            member.number: seen.get(member.number, 0) - updater.held_of(member.number)
            for member in self._members.live()
            if member.number < GUESTS
        }

    # --- teaching the other replica

    def snapshot_for(self, incarnation: str) -> tuple[r.InstallSnapshot, list[NDArray[Any]], Snapshot]:
        """Everything as it is, for the other replica; give the snapshot back when it is sent."""
        updater = self.require_primary()
        assert self._saver is not None
        assert self.define is not None
        held = updater.held()
        position = self.failover.begin_install(incarnation)
        snapshot = updater.shard.snapshot()
        install = r.InstallSnapshot(
            self.failover.lineage,
            self.failover.term,
            position,
            updater.shard.version,
            msgspec.Raw(msgspec.msgpack.encode(updater.rule)),
            tuple(push for push, _ in held),
            r.Began(self.fit, self.last_version, self.trainings),
            self.sources.copy(),
            self._saver.all_worker_states(),
            self.job,
        )
        body = [*snapshot.params.arrays(), *(np.asarray(leaf) for leaf in snapshot.state)]
        for _, gradient in held:
            body += [np.array(block) for block in gradient]
        return install, body, snapshot

    def install_snapshot(self, install: r.InstallSnapshot, body: Sequence[NDArray[np.uint8]]) -> None:
        """Takes everything over from the primary.

        Raises:
          ProtocolError: it is not of the model that was defined.
        """
        assert self.define is not None
        assert self._program is not None
        self.install(self.define, self._program)
        updater = self.require_updater()
        layout = updater.shard.layout
        blocks, leaves = len(layout.blocks), len(self._program.state_shapes)
        params = layout.from_wire(body[:blocks])
        state = updater.shard.state_from_wire(body[blocks : blocks + leaves])
        if params is None or state is None:
            raise ProtocolError(f"the primary of {self.name} sent values of another size than it defined.")
        updater.shard.restore_copy(install.version, params, state)
        updater.rule = decode_any(install.rule, type(updater.rule), f"the primary of {self.name}")
        at = blocks + leaves
        for push in install.held:
            gradient = self._gradient(updater, body[at : at + blocks])
            updater.hold(push, tuple(np.array(block) for block in gradient))
            at += blocks
        self.fit, self.last_version = install.began.fit, install.began.last_version
        self.trainings, self.job = install.began.trainings, install.job
        self.sources.take_over(install.sources)
        self.require_new_saver().take_worker_states(install.worker_state)
        self.failover.install_snapshot(install.lineage, install.term, install.position)

    def follow(self, records: r.Records, old: int, body: Sequence[NDArray[np.uint8]]) -> None:
        """Does what the primary has done. The first `old` records were done before.

        Raises:
          ProtocolError: it did not come to the same.
        """
        updater = self.require_updater()
        layout = updater.shard.layout
        each, at = len(layout.blocks), 0
        for i, record in enumerate(records.records):
            blocks: Sequence[NDArray[np.uint8]] = ()
            if isinstance(record, r.Pushed):
                blocks, at = body[at : at + each], at + each
            if i >= old:
                self._redo(updater, record, blocks)
        if updater.shard.version != records.version:
            raise ProtocolError(
                f"{self._task} followed {self.name} to version {updater.shard.version}, its primary is at "
                f"{records.version}; it gets a new snapshot."
            )

    def _redo(self, updater: Updater, record: r.LogRecord, body: Sequence[NDArray[np.uint8]]) -> None:
        match record:
            case r.Pushed(worker, sequence, version, examples):
                updater.replay(PushEvent(worker, sequence, version, examples), self._gradient(updater, body))
            case r.Joined(worker):
                updater.advance(JoinEvent(worker))
            case r.Left(worker):
                updater.advance(LeaveEvent(worker))
            case r.Began(fit, last_version, trainings):
                self.fit, self.last_version, self.trainings = fit, last_version, trainings
                updater.advance(BeginEvent(last_version))
            case r.Steered(leaf, value):
                updater.shard.set_number(leaf, value)
            case r.Leased(worker, request):
                self.sources.lease(worker, request)
            case r.Released(worker, False):
                self.sources.release(worker)
            case r.Released(worker, True):
                self.sources.release_reserved(worker)
            case r.Kept(worker, sequence, data):
                self.require_new_saver().keep(m.LeftWorkerState(worker, sequence, data))
            case r.Term():
                pass  # the book has it

    def _gradient(self, updater: Updater, body: Sequence[NDArray[np.uint8]]) -> Blocks:
        """The blocks of a gradient that the primary has sent."""
        gradient = updater.shard.layout.from_wire(body)
        if gradient is None:
            raise ProtocolError(f"the primary of {self.name} sent a gradient of another size than it defined.")
        return gradient

    def fail_back(self) -> None:
        """Has the standby hold the shard: nobody waits for an answer from here any more."""
        self.require_primary().let_go()
        self.failover.fail_back()

    def take_over(self) -> None:
        """Begins to hold the shard: the rule hears who is in the job as this ps sees it."""
        updater = self.require_updater()
        counted = {known.number for known in self._members if known.live and not known.paused}
        for worker in sorted(updater.rule.ledger.workers - counted):
            self.member_left(worker, gone=worker not in {known.number for known in self._members.live()})
        for worker in sorted(counted - updater.rule.ledger.workers):
            self.member_joined(worker)


def _owned(record: r.LogRecord, gradient: Blocks, worker: int) -> Blocks:
    """A copy of the gradient, where it is this worker's: the memory that it lies in goes with its stream."""
    if isinstance(record, r.Pushed) and record.worker == worker:
        return tuple(np.array(block) for block in gradient)
    return gradient


def _same(one: m.Define, other: m.Define) -> bool:
    return (one.ps, one.initialise, one.update, one.state) == (other.ps, other.initialise, other.update, other.state)


def _check_contents(define: m.Define, state_shapes: Sequence[tuple[int, ...]]) -> None:
    """Refuses a description of the optimizer state that does not fit its program."""
    sizes = [sum(piece.size for piece in pieces) for pieces in define.state]
    if sizes != [math.prod(shape) for shape in state_shapes]:
        raise Refused("the definition says of the optimizer state other sizes than its program has.")
