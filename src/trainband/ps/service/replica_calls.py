"""ReplicaCalls: the control calls for the two replicas of a shard."""

from __future__ import annotations

from trainband.errors import Refused
from trainband.ps.description import check_definition
from trainband.ps.membership.members import Member
from trainband.ps.program.compiled_program import COMPILER
from trainband.ps.replication.failover import Role
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.service.memory import require_room
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.service.status import StatusReporter
from trainband.ps.shard.definition import Definition
from trainband.ps.task_state import TaskState
from trainband.version import VERSION
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r
from trainband.wire.transport import Caller


class ReplicaCalls:
    """Invitations to follow a primary, and votes."""

    def __init__(self, task: TaskState, replicas: ShardReplicas, status: StatusReporter) -> None:
        self._task = task
        self._replicas = replicas
        self._status = status

    def invite(self, replica: ShardReplica, invite: m.Invite, caller: Caller) -> r.ReplicaState:
        """Prepares a replica to follow a primary. Takes the lock itself."""
        primary, number = invite.replica.ps, replica.number
        self._replicas.require_partner(caller, number, primary)
        if invite.trainband != VERSION:
            raise Refused(
                f"{self._task.name} runs trainband {VERSION}, and ps:{primary} runs {invite.trainband}: "
                "run the same version on both so that they compute the same values."
            )
        if invite.replica.shard != number:
            raise Refused(f"{self._task.name} cannot follow a replica of {replica.name} on ps:{primary}.")
        check_definition(invite.define, number, len(self._task.cluster.spec.ps))
        with self._task.lock:
            self._replicas.await_all_applied(replica)
            if self._replicas.home.job not in ("", invite.define.job):
                raise Refused(
                    f"{self._task.name} and ps:{primary} serve different jobs; end the tasks of the older one."
                )
            if replica.failover.role is not Role.PRIMARY and replica.failover.lineage != invite.replica.lineage:
                replica.failover.step_down()  # its primary is gone
                replica.forget()
            serves = replica.failover.role is not Role.EMPTY
            replica.invited_at = self._task.clock()
        if not serves:
            if invite.compiler != COMPILER:
                self._task.say(
                    f"WARNING: {self._task.name} follows {replica.name} with {COMPILER}, but ps:{primary} "
                    f"has {invite.compiler}: their values may differ in the last bits; "
                    "install the same on both if that matters"
                )
            require_room(self._task, invite.define)
            program = replica.compiler.compile(invite.define, f"ps:{primary}")
            definition = Definition.of(invite.define, program)
            with self._task.lock:
                if replica.failover.role is Role.EMPTY:
                    replica.install(definition)
                    self._replicas.replicate(replica)
        with self._task.lock:
            return replica.state()

    def vote(self, replica: ShardReplica, vote: r.Vote, member: Member) -> m.JobState:
        """Counts a worker's vote if it is the arbiter of the replica's term."""
        if replica.failover.term.arbiter == r.arbiter_name(member.incarnation):
            self._replicas.voted(replica, vote.term, vote.yes, member.task)
        return self._status.job_state(replica)
