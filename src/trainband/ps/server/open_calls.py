"""OpenCalls: the control calls that anybody may make, a member of the job or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from msgspec import Struct

from trainband.errors import RefusalCode, Refused
from trainband.ps.description import check_definition, first_difference
from trainband.ps.membership.members import Member
from trainband.ps.replication.failover import Role
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.server import permissions
from trainband.ps.server.job_membership import JobMembership
from trainband.ps.server.lifecycle import Lifecycle
from trainband.ps.server.program import COMPILER
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.status import StatusReporter
from trainband.ps.server.task_state import TaskState
from trainband.runtime.formatting import printable
from trainband.version import VERSION
from trainband.wire import messages as m
from trainband.wire import replication as r
from trainband.wire.limits import LIMITS
from trainband.wire.transport import Caller

OpenAction = tuple[type[Any], Callable[[ShardReplica, Any, Caller], Struct]]
"""The record that a call brings, and what answers it and whoever calls; that takes the lock itself."""


class OpenCalls:
    """How workers come and go, how a model is defined, and how a replica is asked to follow.

    Args:
      task: what all parts of this ps share.
      membership: who is in the job.
      replicas: of the ps.
      lifecycle: of the task.
      status: answers with the state of the job.
    """

    def __init__(
        self,
        task: TaskState,
        membership: JobMembership,
        replicas: ShardReplicas,
        lifecycle: Lifecycle,
        status: StatusReporter,
    ) -> None:
        self._task = task
        self._membership = membership
        self._members = membership.members
        self._replicas = replicas
        self._lifecycle = lifecycle
        self._status = status
        self._first_guest = 1 + max((worker.index for worker in task.cluster.spec.workers), default=-1)
        self._next_worker = self._first_guest
        self.actions: Mapping[str, OpenAction] = {
            "join": (m.Join, self._join),
            "define": (m.Define, self._define),
            "invite": (m.Invite, self._invite),
            "leave": (m.Leave, self._leave),
            "shutdown": (m.Shutdown, self._shutdown),
        }

    def _join(self, replica: ShardReplica, join: m.Join, caller: Caller) -> m.Joined:
        caller.require_self(join.task, join.incarnation, "join")
        if join.version != VERSION:
            raise Refused(
                f"{join.task} runs {f'trainband {join.version}' if join.version else 'an older trainband'}, and "
                f"{self._task.name} runs {VERSION}: install the same version on both.",
                RefusalCode.OTHER_VERSION,
            )
        with self._task.lock:
            if (
                (replica.is_primary or replica.is_bootstrapping)
                and join.job
                and replica.model.job
                and join.job != replica.model.job
            ):
                raise Refused(self._of_another_job(join.task), RefusalCode.OTHER_JOB)
            self._membership.expire()  # so that the rule hears of a death before it hears of the successor
            try:
                self._compare(replica, join.description, join.task)
            except Refused as exc:
                # One that has waited for the chief to define a model is waited for no more.
                self._membership.refuse(join, str(exc))
                raise
            member, _ = self._membership.join(join)
            self._membership.under_way = self._membership.under_way or bool(join.job)
            return replica.joined(member)

    def vacancy(self) -> m.Vacancy:
        """The addresses of the cluster, and a name for a worker that nobody has yet. Called under the lock."""
        taken = {member.task for member in self._members}
        first, end = self._first_guest, LIMITS.worker_index + 1
        turn = chain(range(max(first, self._next_worker), end), range(first, self._next_worker))
        worker = next((i for i in turn if f"worker:{i}" not in taken), None)
        if worker is None:
            raise Refused(f"{self._task.name} has no name left for one more worker.")
        self._next_worker = worker + 1
        spec = self._task.cluster.spec
        addresses = {job: {i: spec.task_address(job, i) for i in spec.task_indices(job)} for job in spec.jobs}
        return m.Vacancy(addresses, worker)

    def _compare(self, replica: ShardReplica, description: m.Description, task: str) -> None:
        if replica.model.description is None:
            return
        difference = first_difference(replica.model.description, description, task)
        if difference is not None:
            raise Refused(f"{task} cannot join this job: {difference}.", RefusalCode.OTHER_MODEL)

    def _define(self, replica: ShardReplica, define: m.Define, caller: Caller) -> m.Joined:
        with self._task.lock:
            member = self._members.get_process(define.worker, define.incarnation)
            permissions.require_member(caller, member, "define the model")
            self._membership.require_chief(member, "define the model")
            check_definition(define, replica.number, len(self._task.cluster.spec.ps))
            self._membership.hear(member)
            self._compare(replica, define.description, member.task)
            if replica.is_bootstrapping and define.job:
                replica.model.job = define.job  # else that of a chief which has died on the way
            if replica.model.updater is not None:
                return replica.joined(member)
        program = replica.compiler.compile(define, member.task)
        with self._task.lock:
            if replica.model.updater is None:  # else: a repeated call overtook this one
                replica.model.install(define, program)
                for other in self._members.of_others(define.job) if define.job else ():
                    # Nobody waits for it, and the worker of this job that has its name may come.
                    self._members.leave(other, self._of_another_job(other.task))
                    self._task.say(other.failure)
                    self._membership.gone(other)
            return replica.joined(member)

    def _of_another_job(self, task: str) -> str:
        return (
            f"{task} belongs to another job than the one that {self._task.name} serves now: its own has ended; "
            "start it again to join this one."
        )

    def _invite(self, replica: ShardReplica, invite: m.Invite, caller: Caller) -> r.ReplicaState:
        permissions.require_primary(caller, invite.replica.ps)
        if invite.trainband != VERSION:
            raise Refused(
                f"{self._task.name} runs trainband {VERSION}, and ps:{invite.replica.ps} runs {invite.trainband}: "
                "run the same version on both, so that they come to the same values."
            )
        number, tasks = replica.number, len(self._task.cluster.spec.ps)
        places = {number, (number + 1) % tasks} - {self._task.cluster.task.index}
        if invite.replica.shard != number or invite.replica.ps not in places:
            raise Refused(f"{self._task.name} cannot follow a replica of {replica.name} on ps:{invite.replica.ps}.")
        check_definition(invite.define, number, tasks)
        with self._task.lock:
            if replica.number in self._replicas.replicators:
                self._replicas.replicators[replica.number].taker.await_all_taken()
            if self._replicas.home.model.job not in ("", invite.define.job):
                raise Refused(
                    f"{self._task.name} serves another job than ps:{invite.replica.ps} does: "
                    "end the tasks of the older one."
                )
            if replica.failover.role is not Role.PRIMARY and replica.failover.lineage != invite.replica.lineage:
                replica.failover.step_down()  # what it followed is no more
                replica.forget()
            serves = replica.failover.role is not Role.EMPTY
            replica.invited_at = self._task.clock()
        if not serves:
            if invite.compiler != COMPILER:
                self._task.say(
                    f"WARNING: {self._task.name} follows {replica.name} with {COMPILER}, and ps:{invite.replica.ps} "
                    f"has {invite.compiler}: its copy may differ in the last bits; "
                    "install the same on both if they matter"
                )
            program = replica.compiler.compile(invite.define, f"ps:{invite.replica.ps}")
            with self._task.lock:
                if replica.failover.role is Role.EMPTY:
                    replica.model.install(invite.define, program)
                    self._replicas.replicate(replica)
        with self._task.lock:
            return replica.state()

    def _leave(self, replica: ShardReplica, leave: m.Leave, caller: Caller) -> m.JobState:
        with self._task.lock:
            member = self._members.get(leave.worker)
            if leave.incarnation != member.incarnation:
                return self._status.job_state(replica)  # its successor stays
            permissions.require_member(caller, member, "leave")
            self._membership.note_first_batch(member, leave.first_batch)
            if leave.lost and self._believes_lost(member):
                self._membership.lose_values(printable(leave.lost, LIMITS.failure_length, newline="\n"))
            failure = printable(leave.failure, LIMITS.failure_length, newline="\n")
            if self._members.leave(member, failure):
                member.heard_at = self._task.clock()
                self._membership.gone(member)
                self._task.log.info("%s left the job%s", member.task, f": {failure}" if failure else "")
                if failure:
                    self._task.say(f"{member.task} left the job: {failure}")
            self._task.wake.set()
            return self._status.job_state(replica)

    def _believes_lost(self, member: Member) -> bool:
        """Whether values are lost because this worker says so: any may to a ps that has none, else the chief alone."""
        if all(replica.failover.role is Role.EMPTY for replica in self._replicas):
            return True
        try:
            self._membership.require_chief(member, "say that values are lost")
        except Refused:
            return False
        return True

    def _shutdown(self, replica: ShardReplica, shutdown: m.Shutdown, _: Caller) -> m.JobState:
        with self._task.lock:
            self._lifecycle.shut_down(printable(shutdown.reason, LIMITS.failure_length))
            return self._status.job_state(replica)
