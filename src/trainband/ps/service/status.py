"""StatusReporter: the status of a ps and, through its workers, of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainband.job.statistics import PsStatus, Rate, StalenessCounts, TableStatus, VariableStatus, WorkerStatus
from trainband.ps.membership.accounts import variable_statuses
from trainband.ps.membership.members import Member, Presence
from trainband.ps.replication.failover import Role
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.service.job_membership import JobMembership
from trainband.ps.service.memory import PsMemory
from trainband.ps.service.recording_orders import RecordingOrders
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.service.stall_detector import StallDetector
from trainband.ps.shard.definition import Definition
from trainband.ps.shard.updater import Updater
from trainband.ps.tables.statistics import TableStatistics
from trainband.ps.task_state import TaskState
from trainband.version import build
from trainband.wire.messages import calls as m
from trainband.wire.messages.following import JobLayout


@dataclass(slots=True)
class Traffic:
    """Bytes carried by the workers' streams. Changed under the lock."""

    bytes_in: int = 0
    bytes_out: int = 0
    bytes_saved: int = 0
    """Bytes saved by sending gradients and params in a narrower dtype than the variables."""


@dataclass(eq=False)
class StatusReporter:
    """Builder of this ps's status records."""

    _task: TaskState
    _membership: JobMembership
    _replicas: ShardReplicas
    _stall_detector: StallDetector
    _traffic: Traffic
    _recordings: RecordingOrders
    _memory: PsMemory
    _rate: Rate = field(default_factory=Rate, init=False)
    _examples_rate: Rate = field(default_factory=Rate, init=False)
    _variables: tuple[Definition | None, tuple[VariableStatus, ...]] = field(default=(None, ()), init=False)
    """Those of a definition: 10,000 take 0.1 s, too long for each answer under the lock."""

    def job_state(self, replica: ShardReplica) -> m.JobState:
        """Returns the answer to a control call: the job as a replica knows it. Called under the lock."""
        live = self._membership.members.live()
        return m.JobState(
            version=replica.version,
            last_version=replica.training.last_version,
            fit=replica.training.fit,
            initialised=replica.is_primary,
            live=tuple(member.task for member in live),
            waiting_for=replica.waiting_for(),
            at_work=tuple(member.task for member in self._membership.members.at_work()),
            chief=self._membership.chief(),
            trainings=replica.training.trainings,
            replicas=tuple(one.state() for one in self._replicas),
            complete=self._replicas.are_complete(),
            lost=self._membership.lost,
            clock_s=self._task.clock(),
            recording=self._recordings.wanted(),
        )

    def joined(self, replica: ShardReplica, member: Member) -> m.Joined:
        """Returns the answer to a join. Called under the lock."""
        updater, failover = replica.updater, replica.failover
        return m.Joined(
            worker=member.number,
            lease_s=self._membership.members.lease_s,
            defined=updater is not None,
            initialised=replica.is_primary,
            last_sequence=updater.seen(member.number) if updater is not None else 0,
            trainings=replica.training.trainings,
            lineage=failover.lineage if replica.is_primary else "",
            fit=replica.training.fit,
            protected=failover.secure,
            term=failover.term.number,
            job=replica.job,
            empty=failover.role is Role.EMPTY,
            version=build(),
        )

    def layout(self) -> JobLayout:
        """Returns the job's ps and layout, for readers. Called under the lock."""
        addresses = tuple(self._task.ps_addresses())
        for replica in self._replicas:
            if (found := replica.description) is not None:
                return JobLayout(self._task.name, addresses, found.standbys, found.variables, found.slices, replica.job)
        return JobLayout(self._task.name, addresses)

    def ps_status(self, replica: ShardReplica | None = None) -> PsStatus:
        """Returns a snapshot of this ps with one of its replicas and, through it, the job.

        `replica`: by default that of its own shard or, if another ps holds that, one held here.
        Called without the lock.
        """
        memory_bytes = self._memory.process().total
        handles = self._task.runtime.threads_and_descriptors()
        with self._task.lock:
            if replica is None or (replica is self._replicas.home and not replica.is_primary):
                held = (one for one in (self._replicas.home, *self._replicas) if one.is_primary)
                replica = next(held, self._replicas.home)
            return self._ps_status(replica, replica.updater, memory_bytes, handles)

    def _ps_status(
        self, replica: ShardReplica, updater: Updater | None, memory_bytes: int, handles: tuple[int, int]
    ) -> PsStatus:
        definition, shard, spec = replica.definition, replica.shard, self._task.cluster.spec
        now = self._task.clock()
        workers = self._workers(updater, now)
        losses = [one.loss for one in workers if one.loss is not None and one.presence == Presence.LIVE.value]
        staleness = updater.staleness if updater else StalenessCounts()
        ps = [str(task) for task in spec.ps]
        return PsStatus(
            task=self._task.name,
            address=self._task.cluster.address,
            incarnation=self._task.incarnation,
            rule=definition.description.rule if definition else {},
            initialised=replica.is_primary,
            version=replica.version,
            last_version=replica.training.last_version,
            ended=self._task.stopped,
            uptime_s=now - self._task.born,
            rate=self._rate.at(now, replica.version),
            staleness_median=staleness.quantile(0.5),
            staleness_p99=staleness.quantile(0.99),
            staleness_max=staleness.maximum(),
            examples_applied=updater.examples_applied if updater else 0,
            examples_rate=self._examples_rate.at(now, updater.examples_applied if updater else 0),
            examples_dropped=updater.examples_dropped if updater else 0,
            bytes_in=self._traffic.bytes_in,
            bytes_out=self._traffic.bytes_out,
            bytes_saved=self._traffic.bytes_saved,
            shard_bytes=shard.layout.nbytes if shard else 0,
            loss=sum(losses) / len(losses) if losses else None,
            waiting_for=replica.waiting_for(),
            workers=workers,
            checkpoint=replica.checkpoint,
            variables=self._variable_statuses(definition, ps),
            chief=self._membership.chief(),
            replicas=tuple(one.state() for one in self._replicas),
            update_s=updater.busy_s if updater else 0.0,
            ps_addresses=tuple(self._task.ps_addresses()),
            memory_bytes=memory_bytes,
            memory_parts=self._memory.parts(),
            learning_rate=definition.learning_rate(shard) if definition and shard else None,
            trainband=build(),
            threads=handles[0],
            descriptors=handles[1],
            tables=() if shard is None else tuple(map(_table_status, shard.tables.statistics())),
        )

    def _variable_statuses(self, definition: Definition | None, ps: Sequence[str]) -> tuple[VariableStatus, ...]:
        if definition is not self._variables[0]:
            self._variables = definition, variable_statuses(definition.layout.placement, ps) if definition else ()
        return self._variables[1]

    def _workers(self, updater: Updater | None, now: float) -> tuple[WorkerStatus, ...]:
        stalled = self._stall_detector.stalled()
        shares = {member.number: updater.share(member.number) if updater else 0 for member in self._membership.members}
        all_shares = sum(shares.values())
        return tuple(
            self._membership.accounts[member.number].status(
                member,
                now,
                stalled[member.number].silent_s if member.number in stalled else 0.0,
                shares[member.number] / all_shares if all_shares else 0.0,
            )
            for member in self._membership.members
        )

    def sample(self) -> None:
        """Keeps the rates fresh, so that a single query covers the last seconds.

        Called under the lock.
        """
        now = self._task.clock()
        updater = self._replicas.home.updater
        self._rate.at(now, self._replicas.home.version)
        self._examples_rate.at(now, updater.examples_applied if updater else 0)
        for account in self._membership.accounts.values():
            account.rate.at(now, account.pushes)


def _table_status(named: tuple[str, TableStatistics]) -> TableStatus:
    name, found = named
    return TableStatus(
        name,
        found.rows,
        found.bytes,
        found.hits,
        found.misses,
        found.admitted,
        found.refused + found.refused_for_room,
        found.evicted,
    )
