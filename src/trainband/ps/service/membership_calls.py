"""MembershipCalls: the control calls for joining, staying and leaving."""

from __future__ import annotations

from itertools import chain

from trainband.errors import RefusalCode, Refused
from trainband.ps.membership.members import Member
from trainband.ps.replication.failover import Role
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.service.job_membership import JobMembership
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.service.status import StatusReporter
from trainband.ps.task_state import TaskState
from trainband.runtime.formatting import one_line
from trainband.version import VERSION
from trainband.wire.limits import LIMITS
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r
from trainband.wire.transport import Caller


class MembershipCalls:
    """Joining, heartbeats, pauses and leaving."""

    def __init__(
        self, task: TaskState, membership: JobMembership, replicas: ShardReplicas, status: StatusReporter
    ) -> None:
        self._task = task
        self._membership = membership
        self._members = membership.members
        self._accounts = membership.accounts
        self._replicas = replicas
        self._status = status
        self._first_elastic = 1 + max((worker.index for worker in task.cluster.spec.workers), default=-1)
        self._next_worker = self._first_elastic

    def vacancy(self, _: ShardReplica, __: None, ___: Caller) -> m.Vacancy:
        """Returns the cluster's addresses and an unused worker name."""
        taken = {member.task for member in self._members}
        first, end = self._first_elastic, LIMITS.worker_index + 1
        turn = chain(range(max(first, self._next_worker), end), range(first, self._next_worker))
        worker = next((i for i in turn if f"worker:{i}" not in taken), None)
        if worker is None:
            raise Refused(f"{self._task.name} has no unused worker name left.")
        self._next_worker = worker + 1
        spec = self._task.cluster.spec
        addresses = {job: {i: spec.task_address(job, i) for i in spec.task_indices(job)} for job in spec.jobs}
        return m.Vacancy(addresses, worker)

    def join(self, replica: ShardReplica, join: m.Join, caller: Caller) -> m.Joined:
        """Adds a worker to the job."""
        caller.require_self(join.task, join.incarnation, "join")
        if join.version.partition("+")[0] != VERSION:
            raise Refused(
                f"{join.task} runs {f'trainband {join.version}' if join.version else 'an older trainband'}, and "
                f"{self._task.name} runs {VERSION}: install the same version on both.",
                RefusalCode.OTHER_VERSION,
            )
        has_job = (replica.is_primary or replica.is_bootstrapping) and replica.job
        if has_job and join.job and join.job != replica.job:
            raise Refused(self._membership.of_another_job(join.task), RefusalCode.OTHER_JOB)
        self._membership.expire()  # so that the rule sees a death before the successor
        try:
            self._membership.require_same_model(replica, join.description, join.task)
        except Refused as exc:
            # It may have joined before the chief defined the model: remove it.
            self._membership.refuse(join, str(exc))
            raise
        member, _ = self._membership.join(join)
        self._membership.under_way = self._membership.under_way or bool(join.job)
        return self._status.joined(replica, member)

    def leave(self, replica: ShardReplica, leave: m.Leave, caller: Caller) -> m.JobState:
        """Removes a worker from the job unless another process has taken its place."""
        member = self._members.get(leave.worker)
        if leave.incarnation != member.incarnation:
            return self._status.job_state(replica)  # its successor stays
        caller.require_self(member.task, member.incarnation, "leave")
        self._membership.record_first_batch(member, leave.first_batch)
        if leave.lost and self._believes_lost(member):
            self._membership.lose_values(one_line(leave.lost, LIMITS.failure_length))
        failure = one_line(leave.failure, LIMITS.failure_length)
        if self._members.leave(member, failure):
            member.heard_at = self._task.clock()
            self._membership.gone(member)
            self._task.log.info("%s left the job%s", member.task, f": {failure}" if failure else "")
            if failure:
                self._task.say(f"{member.task} left the job: {failure}")
        self._task.wake.set()
        return self._status.job_state(replica)

    def _believes_lost(self, member: Member) -> bool:
        """Whether to believe a report of lost values: any worker's if this ps has none, else only the chief's."""
        if all(replica.failover.role is Role.EMPTY for replica in self._replicas):
            return True
        try:
            self._membership.require_chief(member, "report lost values")
        except Refused:
            return False
        return True

    def heartbeat(self, replica: ShardReplica, beat: m.Heartbeat, member: Member) -> m.JobState:
        """Records a worker's own report."""
        if member.has_left:
            return self._status.job_state(replica)  # a late heartbeat changes nothing
        account = self._accounts[member.number]
        account.blocked_by = beat.blocked_by
        account.record_spent(self._task.clock(), beat.spent)
        account.memory = beat.memory
        self._membership.record_first_batch(member, beat.first_batch)
        # A ps that holds a shard trusts the pushes it sees over one heartbeat, which may be late.
        sees = any(one.is_primary for one in self._replicas)
        if beat.paused and (member.reports_paused or not sees):
            self._membership.set_aside(member)
        elif member.paused and not beat.paused and not sees:
            member.paused = False
            self._membership.came(member)
        member.reports_paused = beat.paused
        return self._status.job_state(replica)

    def pause(self, replica: ShardReplica, _: m.Pause, member: Member) -> m.JobState:
        """Ignores a worker until its next push; frees the data that a checkpoint reserved for it."""
        replica.require_held()
        if member.has_left:
            return self._status.job_state(replica)
        self._membership.set_aside(member)
        if replica.is_primary and member.number in replica.sources.holders():
            replica.record(r.Released(member.number, reserved=True))
        return self._status.job_state(replica)
