"""StatusReporter: what a ps tells of itself and, through its workers, of the job."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.ps.membership.accounts import variable_statuses
from trainband.ps.membership.members import Presence
from trainband.ps.membership.stall_detector import StallDetector
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.server.job_membership import JobMembership
from trainband.ps.server.recording_orders import RecordingOrders
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.task_state import TaskState
from trainband.ps.statistics import PsStatus, Rate, StalenessCounts
from trainband.wire import messages as m
from trainband.wire.following import JobLayout


@dataclass(slots=True)
class Traffic:
    """What the streams of workers have carried, in bytes. Changed under the lock."""

    bytes_in: int = 0
    bytes_out: int = 0
    bytes_saved: int = 0
    """By gradients of a narrower dtype than that of the variables."""


class StatusReporter:
    """Makes the records that show this ps.

    Args:
      task: what all parts of this ps share.
      membership: who is in the job.
      replicas: of the ps.
      stall_detector: knows which workers are stuck.
      traffic: what the streams have carried.
      recordings: of steps, that are ordered.
    """

    def __init__(
        self,
        task: TaskState,
        membership: JobMembership,
        replicas: ShardReplicas,
        stall_detector: StallDetector,
        traffic: Traffic,
        recordings: RecordingOrders,
    ) -> None:
        self._task = task
        self._membership = membership
        self._members = membership.members
        self._accounts = membership.accounts
        self._replicas = replicas
        self._stall_detector = stall_detector
        self._traffic = traffic
        self._recordings = recordings
        self._rate = Rate()
        self._examples_rate = Rate()

    def job_state(self, replica: ShardReplica) -> m.JobState:
        """What a control call is answered with: the job, as one of the replicas knows it. Called under the lock."""
        live = self._members.live()
        return m.JobState(
            version=replica.version,
            last_version=replica.model.last_version,
            fit=replica.model.fit,
            initialised=replica.is_primary,
            live=tuple(member.task for member in live),
            waiting_for=replica.waiting_for(),
            at_work=tuple(member.task for member in self._members.at_work()),
            chief=self._membership.chief(),
            trainings=replica.model.trainings,
            replicas=tuple(one.state() for one in self._replicas),
            complete=self._replicas.are_complete(),
            lost=self._membership.lost,
            clock_s=self._task.clock(),
            recording=self._recordings.wanted(),
        )

    def layout(self) -> JobLayout:
        """The ps of the job and what lies where, for readers. Called under the lock."""
        addresses = tuple(self._task.ps_addresses())
        model = next((one.model for one in self._replicas if one.model.description is not None), None)
        if model is None or model.description is None:
            return JobLayout(self._task.name, addresses)
        found = model.description
        return JobLayout(self._task.name, addresses, found.standbys, found.variables, found.slices, model.job)

    def ps_status(self, replica: ShardReplica | None = None) -> PsStatus:
        """A frozen picture of this ps with one of its replicas and, through it, of the job.

        `replica`: that of its own shard if left out, or, where another ps holds that, one that it does hold.
        Called without the lock.
        """
        memory_bytes = self._task.runtime.memory_bytes()
        with self._task.lock:
            if replica is None or (replica is self._replicas.home and not replica.is_primary):
                replica = next(
                    (one for one in (self._replicas.home, *self._replicas) if one.is_primary), self._replicas.home
                )
            updater, shard, layout = replica.model.updater, replica.model.shard, replica.model.layout
            now = self._task.clock()
            version = replica.version
            stalled = self._stall_detector.stalled()
            shares = {member.number: updater.rule.share(member.number) if updater else 0 for member in self._members}
            all_shares = sum(shares.values())
            workers = tuple(
                self._accounts[member.number].status(
                    member,
                    now,
                    stalled[member.number].silent_s if member.number in stalled else 0.0,
                    shares[member.number] / all_shares if all_shares else 0.0,
                )
                for member in self._members
            )
            losses = [w.loss for w in workers if w.loss is not None and w.presence == Presence.LIVE.value]
            staleness = updater.staleness if updater else StalenessCounts()
            ps = [str(task) for task in self._task.cluster.spec.ps]
            return PsStatus(
                task=self._task.name,
                address=self._task.cluster.address,
                incarnation=self._task.incarnation,
                rule=replica.model.description.rule if replica.model.description else {},
                initialised=replica.is_primary,
                version=version,
                last_version=replica.model.last_version,
                ended=self._task.stopped,
                uptime_s=now - self._task.born,
                rate=self._rate.at(now, version),
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
                checkpoint=replica.model.checkpoint,
                variables=variable_statuses(layout.placement, ps) if layout else (),
                chief=self._membership.chief(),
                replicas=tuple(one.state() for one in self._replicas),
                update_s=updater.busy_s if updater else 0.0,
                ps_addresses=tuple(self._task.cluster.spec.address(task) for task in self._task.cluster.spec.ps),
                memory_bytes=memory_bytes,
                learning_rate=replica.model.learning_rate,
            )

    def sample(self) -> None:
        """Keeps the rates fresh, so that whoever asks once gets an answer about the last seconds.

        Called under the lock.
        """
        now = self._task.clock()
        updater = self._replicas.home.model.updater
        self._rate.at(now, self._replicas.home.version)
        self._examples_rate.at(now, updater.examples_applied if updater else 0)
        for account in self._accounts.values():
            account.rate.at(now, account.pushes)
