"""ShardReplica: one ps's replica of one shard. It holds the values, or follows the ps that does.

Every change of the shard is a record: the primary makes the change and logs it, and the standby repeats it.

Not thread-safe: the service holds its lock around every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.data.leases import LeaseAnswer
from trainband.errors import ProtocolError, RefusalCode, Refused
from trainband.job.checkpoints import CheckpointStatus
from trainband.job.shared_sources import SharedSources
from trainband.ps.membership.members import Members
from trainband.ps.program.compiled_program import CompileProgram
from trainband.ps.program.program_compiler import ProgramCompiler
from trainband.ps.replication.failover import Failover, Role
from trainband.ps.replication.replica_places import replica_places
from trainband.ps.rules.base import Begin as BeginEvent
from trainband.ps.rules.base import Join as JoinEvent
from trainband.ps.rules.base import Leave as LeaveEvent
from trainband.ps.rules.base import Push as PushEvent
from trainband.ps.shard.definition import Definition
from trainband.ps.shard.narrow_versions import NarrowVersions
from trainband.ps.shard.pushed import arrays_of_push, gradient_from_wire
from trainband.ps.shard.saver import ShardSaver
from trainband.ps.shard.shard import Shard
from trainband.ps.shard.updater import PendingPush, Updater
from trainband.ps.task_state import TaskState
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r
from trainband.wire.messages.fields import ELASTIC_BASE

Blocks = Sequence[NDArray[Any]]

NO_TRAINING = r.Began(0, 0, ())


class ShardReplica:
    """One shard, on one ps."""

    def __init__(self, shard: int, task: TaskState, members: Members, compile_program: CompileProgram) -> None:
        self.number = shard
        self.name = f"shard {shard}"
        """Its name in messages."""
        self.failover = Failover(shard, task.cluster.task.index)
        """Who holds the shard, and the log of its records."""
        self.compiler = ProgramCompiler(compile_program, task.runtime)
        self.definition: Definition | None = None
        """Kept for the next snapshot when the values are given up."""
        self.shard: Shard | None = None
        """The values; like the updater and the saver, `None` until the model is defined."""
        self.narrow: NarrowVersions | None = None
        """The values as the answers to pushes send them; `None` in their own dtypes."""
        self.updater: Updater | None = None
        self.saver: ShardSaver | None = None
        self.sources = SharedSources()
        self.training = NO_TRAINING
        """The training under way, or the last one."""
        self.job = ""
        """The job's id."""
        self.checkpoint: CheckpointStatus | None = None
        self.transport = ""
        """The transport that last carried the records to the other replica."""
        self.invited_at = float("-inf")
        """When the shard's primary last asked this replica to follow it, by the service's clock."""
        self.held_since = float("-inf")
        """When this ps took the shard over from another one, by the service's clock."""
        self._task = task
        self._members = members

    @property
    def description(self) -> m.Description | None:
        """The model, if it is defined."""
        return self.definition.description if self.definition is not None else None

    @property
    def is_primary(self) -> bool:
        """Whether this ps holds the shard and its values."""
        return self.failover.holds

    @property
    def version(self) -> int:
        """How many updates the shard has applied. Takes no lock."""
        shard = self.shard
        return shard.version if shard is not None else 0

    @property
    def complete(self) -> bool:
        """Whether all updates that were asked for are made."""
        return self.training.fit > 0 and self.shard is not None and self.version >= self.training.last_version

    @property
    def is_deserted(self) -> bool:
        """Whether the job is complete and all workers have left."""
        return self.complete and not self._members.live()

    @property
    def is_bootstrapping(self) -> bool:
        """Whether the chief has defined the model here but not yet sent its values."""
        return self.shard is not None and self.failover.role is Role.EMPTY and self.invited_at < 0

    def may_fail_back(self, there: m.JobState | None = None) -> bool:
        """Whether another replica may be given the shard: in a training run, with no checkpoint under way.

        `there`: the state of its ps, which must see the same workers in the job and at work as this one.
        """
        live = {member.number for member in self._members.live()}
        return (
            self.training.fit > 0
            and not self.complete
            and not (self.saver is not None and self.saver.is_busy(live))
            and (there is None or self._members.are(there.live, there.at_work))
        )

    def require_updater(self) -> Updater:
        """The updater. Raises `Refused` if no model is defined."""
        if self.updater is None:
            raise Refused(
                f"{self._task.name} has no model yet: it waits for the chief to define one.", RefusalCode.NOT_READY
            )
        return self.updater

    def require_held(self) -> None:
        """Raises `Refused` if another ps holds the values."""
        if self.failover.lineage and not self.is_primary:
            raise Refused(f"{self._task.name} does not hold {self.name}.", RefusalCode.MOVED)

    def require_primary(self) -> Shard:
        """The values. Raises `Refused` if another ps holds them, or no model is defined."""
        self.require_held()
        return self.require_updater().shard

    def require_saver(self, *, held: bool = True) -> ShardSaver:
        """The saver. Raises `Refused` if no model is defined or, with `held`, another ps holds the values."""
        if held:
            self.require_held()
        self.require_updater()
        assert self.saver is not None
        return self.saver

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
            self._task.incarnation,
            self._task.host,
            failover.log.behind,
            failover.asks(),
            self.training.fit,
            self.transport if failover.known_as is Role.PRIMARY else "",
        )

    def waiting_for(self) -> tuple[str, ...]:
        """The tasks that others are waiting for."""
        if self.updater is None or not self.is_primary:
            return ()
        workers = tuple(self._members.name(number) for number in sorted(self.updater.waiting_for()))
        return (*workers, f"ps:{self.failover.other}") if self.failover.log.lacks_standby else workers

    def install(self, definition: Definition) -> None:
        """Starts with a model that has no values yet."""
        define, ps_count = definition.define, len(definition.layout.shards)
        spec = self._task.cluster.spec
        if definition.description.standbys:
            places = replica_places(self.number, ps_count)
            self.failover.other = next((ps for ps in places if ps != self.failover.me), self.number)
        if self.updater is not None:
            self.updater.free_all()

        def seen() -> dict[int, int]:
            """Each worker's number of applied or dropped pushes, without those of a step under way."""
            updater, live = self.require_updater(), self._members.live()
            numbers = [member.number for member in live if member.number < ELASTIC_BASE]
            return {number: updater.seen(number) - updater.held_of(number) for number in numbers}

        self.definition, self.job, self.shard = definition, define.job, definition.new_shard()
        pull_dtype = definition.description.pull_dtype
        self.narrow = NarrowVersions(self.shard.layout, pull_dtype, self._task.runtime.lock()) if pull_dtype else None
        self.saver = ShardSaver(
            self.shard,
            define.state,
            (define.ps, ps_count),
            self._task.lock,
            directories=self._task.directories,
            runtime=self._task.runtime,
            seen=seen if define.ps == 0 else dict,
            sources=self.sources.record,
        )
        rule = definition.new_rule(0, 0 if define.alone else len(spec.workers))
        self.updater = Updater(
            self.shard,
            rule,
            definition.delay_compensation,
            definition.state_worker(spec),
            self._task.runtime,
            self.saver.after_update,
        )
        self.updater.start(rule, _counts(self._members))

    def forget(self) -> None:
        """Gives up the values and the training; the next definition or snapshot starts from scratch."""
        if self.updater is not None:
            self.updater.free_all()
        self.shard = self.narrow = self.updater = self.saver = None
        self.sources.replace_ledgers({})
        self.training = NO_TRAINING

    def initialise(self, blocks: Blocks) -> None:
        """Takes the first values."""
        self.require_updater().shard.initialise(blocks)
        self.require_saver(held=False).forget_reading()
        self.failover.bootstrap(self._task.runtime.token())

    def adopt(self, adopt: m.Adopt) -> None:
        """Takes the values read from a checkpoint. Repeated orders change nothing."""
        updater = self.require_updater()
        if updater.shard.initialised:
            return
        workers = len(self._task.cluster.spec.workers)
        SharedSources().restore(adopt.sources, workers)  # before anything is changed: they may be invalid
        self.require_saver(held=False).adopt(adopt)
        self.sources.restore(adopt.sources, workers)
        assert self.definition is not None
        rule = self.definition.new_rule(adopt.version, 0 if adopt.alone else workers)
        updater.start(rule, _counts(self._members))
        self.failover.bootstrap(self._task.runtime.token())

    def take_over(self) -> None:
        """Starts to hold the shard: tells the rule who this ps sees in the job."""
        before, now = self.require_updater().counted(), _counts(self._members)
        counted = {number for number, counts in now.items() if counts}
        live = {member.number for member in self._members.live()}
        for worker in sorted(before - counted):
            self.member_left(worker, gone=worker not in live)
        for worker in sorted(counted - before):
            self.member_joined(worker)

    def member_joined(self, number: int) -> None:
        """Records that a worker is in the job."""
        if self.updater is not None and (self.is_primary or self.failover.role is Role.EMPTY):
            self.record(r.Joined(number))

    def member_left(self, number: int, *, gone: bool) -> None:
        """Stops waiting for a worker; if it is `gone`, reassigns its leases."""
        if not (self.is_primary or self.failover.role is Role.EMPTY):
            return
        self.failover.log.copy_blocks(lambda record, gradient: _owned(record, gradient, number))
        if gone:
            self.record(r.Released(number))
        if self.updater is not None:
            self.record(r.Left(number))

    def push(self, event: PushEvent, gradient: Blocks) -> PendingPush:
        """Takes a finite gradient, borrowed until the push is answered."""
        self.require_primary()
        pending = self.require_updater().push(event, gradient)
        record = r.Pushed(event.worker, event.sequence, event.version, event.examples, event.workload)
        self.failover.log.append(record, gradient)
        return pending

    def record(self, record: r.LogRecord, blocks: Blocks = ()) -> LeaseAnswer | None:
        """Makes a change on the primary and logs it; returns the answer to a lease. `push` is for gradients."""
        answer = self._apply(record, blocks)
        self.failover.log.append(record, blocks)
        return answer

    def follow(self, records: r.Records, old: int, body: Sequence[NDArray[np.uint8]]) -> None:
        """Repeats the primary's changes. The first `old` records were applied before.

        Raises:
          ProtocolError: the result differs.
        """
        shard = self.require_updater().shard
        at = 0
        for i, record in enumerate(records.records):
            raw: Sequence[NDArray[np.uint8]] | None = None
            if isinstance(record, r.Pushed | r.Assigned):
                each = arrays_of_push(shard) if isinstance(record, r.Pushed) else len(shard.layout.blocks)
                raw, at = body[at : at + each], at + each
            if i >= old:
                self._apply(record, () if raw is None else arrays_from_wire(shard, raw, self.name))
        if shard.version != records.version:
            raise ProtocolError(
                f"{self._task.name} followed {self.name} to version {shard.version}, but its primary is at "
                f"{records.version}; it gets a new snapshot."
            )

    def _apply(self, record: r.LogRecord, blocks: Blocks) -> LeaseAnswer | None:
        match record:
            case r.Pushed(worker, sequence, version, examples, workload):
                self.require_updater().replay(PushEvent(worker, sequence, version, examples, workload), blocks)
            case r.Joined(worker):
                self.require_updater().advance(JoinEvent(worker))
            case r.Left(worker):
                self.require_updater().advance(LeaveEvent(worker))
            case r.Began(_, last_version):
                self.training = record
                self.require_updater().advance(BeginEvent(last_version))
            case r.Assigned(replaced, added):
                self.require_updater().shard.assign(blocks, replaced, added)
            case r.Steered(leaf, value):
                self.require_updater().shard.set_number(leaf, value)
            case r.Leased(worker, request):
                return self.sources.lease(worker, request)
            case r.Released(worker, False):
                self.sources.release(worker)
            case r.Released(worker, True):
                self.sources.release_reserved(worker)
            case r.Kept(worker, sequence, data):
                self.require_saver(held=False).store_worker_state(m.LeftWorkerState(worker, "", sequence, data))
            case r.Term():
                pass  # `Failover.receive` handles it
        return None


def arrays_from_wire(shard: Shard, body: Sequence[NDArray[np.uint8]], name: str) -> Blocks:
    """A gradient or values from the primary. Raises `ProtocolError` if their size is wrong."""
    blocks = len(shard.layout.blocks)
    arrays = shard.layout.from_wire(body) if len(body) == blocks else gradient_from_wire(shard, body)
    if arrays is None:
        raise ProtocolError(f"the primary of {name} sent a gradient of another size than it defined.")
    return arrays


def _counts(members: Members) -> Mapping[int, bool]:
    """For each worker that has joined, whether the rule counts it."""
    return {known.number: known.live and not known.paused for known in members}


def _owned(record: r.LogRecord, gradient: Blocks, worker: int) -> Blocks:
    """A copy of the gradient if it is this worker's: its memory goes with the worker's stream."""
    if isinstance(record, r.Pushed) and record.worker == worker:
        return tuple(np.array(block) for block in gradient)
    return gradient
