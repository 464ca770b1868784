"""A replica: one ps's part in one shard. It holds the values, or follows those of the ps that does.

Not thread-safe: the service holds its lock around every call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainband.cluster import Cluster
from trainband.errors import ProtocolError
from trainband.ps.membership.members import Member, Members
from trainband.ps.replication.failover import Failover, Role
from trainband.ps.replication.shard_journal import ShardJournal
from trainband.ps.replication.shard_model import Blocks, ShardModel
from trainband.ps.rules.registry import check_rule_state, rule_of
from trainband.ps.server.allowed_directories import AllowedDirectories
from trainband.ps.server.program import CompileProgram
from trainband.ps.server.program_compiler import ProgramCompiler
from trainband.ps.server.shard import Snapshot
from trainband.ps.server.sources import SharedSources
from trainband.ps.server.updater import Updater
from trainband.runtime import Lock, Runtime
from trainband.wire import messages as m
from trainband.wire import replication as r
from trainband.wire.codec import decode_any


class ShardReplica:
    """One shard, on one ps.

    Args:
      shard: its number.
      cluster: and which of its tasks this ps is.
      members: who is in the job, as this ps knows.
      lock: the service's.
      directories: where checkpoints may be.
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
        directories: AllowedDirectories,
        incarnation: str,
        runtime: Runtime,
        compile_program: CompileProgram,
    ) -> None:
        self.failover = Failover(shard, cluster.task.index)
        self.model = ShardModel(self.failover, cluster, members, lock, directories, runtime)
        self.journal = ShardJournal(self.model, self.failover, str(cluster.task))
        self.compiler = ProgramCompiler(compile_program, runtime)
        self.number = shard
        self.name = self.model.name
        """For messages."""
        self.transport = ""
        """What carried the records to the other replica last."""
        self.invited_at = float("-inf")
        """When the shard's primary last asked this replica to follow it, by the service's clock."""
        self.held_since = float("-inf")
        """When this ps took the shard over from another one, by the service's clock."""
        self._cluster = cluster
        self._members = members
        self._incarnation = incarnation
        self._runtime = runtime

    # --- what it knows

    @property
    def define(self) -> m.Define | None:
        """What the chief has said of the model."""
        return self.model.define

    @property
    def is_primary(self) -> bool:
        """Whether this ps holds the shard, and values are there."""
        return self.failover.holds

    @property
    def version(self) -> int:
        """How many updates the shard has applied."""
        return self.model.version

    def deadlocked(self, blocked_by: Mapping[int, Collection[int]]) -> set[int]:
        """The workers that are waited for here, and wait elsewhere for one that waits here: none of them can go on.

        `blocked_by`: of each worker, those that it waits for at other ps.
        """
        if self.model.updater is None or not self.is_primary:
            return set()
        waiting = self.model.updater.waiting()
        found = set()
        for worker in self.model.updater.rule.waiting_for():
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
        return (
            self.model.fit > 0
            and not self.model.complete
            and not (self.model.saver is not None and self.model.saver.is_busy(live))
        )

    def sees_the_same(self, other: m.JobState) -> bool:
        """Whether another ps has the same workers in the job as this one, and those at work that are here."""
        return self._members.are(other.live, other.at_work)

    @property
    def deserted(self) -> bool:
        """Whether the job is done, and everybody has left."""
        return self.model.complete and not self._members.live()

    def state(self) -> r.ReplicaState:
        """As a record."""
        failover = self.failover
        return r.ReplicaState(
            self.model.number,
            failover.me,
            failover.known_as.value,
            failover.lineage,
            failover.term,
            failover.position,
            self.model.version,
            self._incarnation,
            self._runtime.host,
            failover.log.behind,
            failover.asks(),
            self.model.fit,
            self.transport if failover.known_as is Role.PRIMARY else "",
        )

    @property
    def is_bootstrapping(self) -> bool:
        """Whether the chief has defined the model here, and has yet to give it its values."""
        return self.model.updater is not None and self.failover.role is Role.EMPTY and self.invited_at < 0

    def waiting_for(self) -> tuple[str, ...]:
        """The tasks without whose word somebody does not go on."""
        if self.model.updater is None or not self.is_primary:
            return ()
        workers = tuple(self._members.name(number) for number in sorted(self.model.updater.rule.waiting_for()))
        return (*workers, f"ps:{self.failover.other}") if self.failover.log.lacks_standby else workers

    def joined(self, member: Member) -> m.Joined:
        """What a worker that joins is told."""
        return m.Joined(
            worker=member.number,
            lease_s=self._members.lease_s,
            defined=self.model.updater is not None,
            initialised=self.is_primary,
            last_sequence=self.model.updater.rule.ledger.seen.get(member.number, 0) if self.model.updater else 0,
            trainings=self.model.trainings,
            lineage=self.failover.lineage if self.is_primary else "",
            fit=self.model.fit,
            protected=self.failover.secure,
            term=self.failover.term.number,
            job=self.model.job,
            empty=self.failover.role is Role.EMPTY,
        )

    def require_primary(self) -> Updater:
        """The shard with its rule. Raises `Refused` where another ps holds it, or no model is defined."""
        return self.model.require_primary()

    # --- how it gets values, and gives them up

    def initialise(self, blocks: Blocks) -> None:
        """Takes the first values."""
        updater = self.model.require_updater()
        updater.shard.initialise(blocks)
        self.model.require_new_saver().forget_reading()
        self.failover.bootstrap(self._runtime.token())

    def adopt(self, adopt: m.Adopt) -> None:
        """Takes the values of a checkpoint that were read. Repeated orders change nothing."""
        updater = self.model.require_updater()
        if updater.shard.initialised:
            return
        workers = len(self._cluster.spec.workers)
        SharedSources().restore(adopt.sources, workers)  # before anything is changed: they may be no records
        self.model.require_new_saver().adopt(adopt)
        self.model.sources.restore(adopt.sources, workers)
        assert self.model.description is not None
        updater.rule = rule_of(self.model.description.rule).start(adopt.version, 0 if adopt.alone else workers)
        self.model.tell_rule()
        self.failover.bootstrap(self._runtime.token())

    def forget(self) -> None:
        """Gives up a shard that another ps holds: the next to define or to teach it begins afresh."""
        self.model.clear()

    # --- teaching the other replica

    def snapshot_for(self, incarnation: str) -> tuple[r.InstallSnapshot, list[NDArray[Any]], Snapshot]:
        """Everything as it is, for the other replica; give the snapshot back when it is sent."""
        updater = self.model.require_primary()
        assert self.model.saver is not None
        assert self.model.define is not None
        held = updater.held()
        position = self.failover.log.begin_install(incarnation)
        snapshot = updater.shard.snapshot()
        install = r.InstallSnapshot(
            self.failover.lineage,
            self.failover.term,
            position,
            updater.shard.version,
            msgspec.Raw(msgspec.msgpack.encode(updater.rule)),
            tuple(push for push, _ in held),
            r.Began(self.model.fit, self.model.last_version, self.model.trainings),
            self.model.sources.copy(),
            self.model.saver.all_worker_states(),
            self.model.job,
        )
        body = [*snapshot.params.arrays(), *(np.asarray(leaf) for leaf in snapshot.state)]
        for _, gradient in held:
            body += [np.array(block) for block in gradient]
        return install, body, snapshot

    def install_snapshot(self, install: r.InstallSnapshot, body: Sequence[NDArray[np.uint8]]) -> None:
        """Takes everything over from the primary.

        Raises:
          ProtocolError, DataError: it is not of the model that was defined, or contradicts itself; nothing has changed.
        """
        define, program, primary = self.model.define, self.model.program, f"the primary of {self.model.name}"
        assert define is not None
        assert program is not None
        rule = decode_any(install.rule, type(rule_of(define.description.rule).start(0, 0)), primary)
        check_rule_state(rule, install.version, {(push.worker, push.sequence) for push in install.held}, primary)
        shard = self.model.shard_of(define, program)  # one that nobody has yet
        blocks, leaves = len(shard.layout.blocks), len(program.state_shapes)
        at = blocks + leaves
        if len(body) != at + blocks * len(install.held):
            raise ProtocolError(f"{primary} sent {len(body)} buffers, which are not those of what it defined.")
        params = shard.layout.from_wire(body[:blocks])
        state = shard.state_from_wire(body[blocks:at])
        if params is None or state is None:
            raise ProtocolError(f"{primary} sent values of another size than it defined.")
        held = [
            self.model.gradient_from_wire(shard.layout, body[at + i * blocks : at + (i + 1) * blocks])
            for i in range(len(install.held))
        ]
        SharedSources().take_over(install.sources)  # which may be no ledgers
        self.model.install(define, program)
        updater = self.model.require_updater()
        updater.shard.restore_copy(install.version, params, state)
        updater.rule = rule
        for push, gradient in zip(install.held, held, strict=True):
            updater.hold(push, tuple(np.array(block) for block in gradient))
        self.model.fit, self.model.last_version = install.began.fit, install.began.last_version
        self.model.trainings, self.model.job = install.began.trainings, install.job
        self.model.sources.take_over(install.sources)
        self.model.require_new_saver().take_worker_states(install.worker_state)
        self.failover.install_snapshot(install.lineage, install.term, install.position)

    def follow(self, records: r.Records, old: int, body: Sequence[NDArray[np.uint8]]) -> None:
        """Does what the primary has done: see `ShardJournal.follow`."""
        self.journal.follow(records, old, body)

    def fail_back(self) -> None:
        """Has the standby hold the shard: nobody waits for an answer from here any more."""
        self.model.require_primary().let_go()
        self.failover.fail_back()

    def take_over(self) -> None:
        """Begins to hold the shard: the rule hears who is in the job as this ps sees it."""
        updater = self.model.require_updater()
        counted = {known.number for known in self._members if known.live and not known.paused}
        for worker in sorted(updater.rule.ledger.workers - counted):
            self.journal.member_left(worker, gone=worker not in {known.number for known in self._members.live()})
        for worker in sorted(counted - updater.rule.ledger.workers):
            self.journal.member_joined(worker)
