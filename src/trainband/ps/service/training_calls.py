"""TrainingCalls: the control calls that define a model and train it."""

from __future__ import annotations

import math
from itertools import pairwise

from trainband.data.leases import LeaseAnswer
from trainband.errors import RefusalCode, Refused
from trainband.ps.description import check_definition
from trainband.ps.membership.members import Member
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.service.job_membership import JobMembership
from trainband.ps.service.memory import require_room
from trainband.ps.service.status import StatusReporter
from trainband.ps.shard.definition import Definition
from trainband.ps.task_state import TaskState
from trainband.wire.limits import LIMITS
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r


class TrainingCalls:
    """Calls that define a model, begin and end trainings, and lease data."""

    def __init__(self, task: TaskState, membership: JobMembership, status: StatusReporter) -> None:
        self._task = task
        self._membership = membership
        self._status = status

    def define(self, replica: ShardReplica, define: m.Define, member: Member) -> m.Joined:
        """Defines the model of a shard, unless it is defined already. Takes the lock itself."""
        with self._task.lock:
            check_definition(define, replica.number, len(self._task.cluster.spec.ps))
            self._membership.require_same_model(replica, define.description, member.task)
            if replica.is_bootstrapping and define.job:
                replica.job = define.job  # else that of a chief that died midway
            if replica.updater is not None:
                return self._status.joined(replica, member)
        require_room(self._task, define)
        definition = Definition.of(define, replica.compiler.compile(define, member.task))
        with self._task.lock:
            if replica.updater is None:  # else: a repeated call overtook this one
                replica.install(definition)
                self._membership.remove_others(define.job)
            return self._status.joined(replica, member)

    def begin(self, replica: ShardReplica, begin: m.Begin, _: Member) -> m.JobState:
        if replica.updater is not None:
            replica.require_primary()
        if not replica.is_primary:
            raise Refused(f"{self._task.name} has no values yet, so training cannot begin.", RefusalCode.NOT_READY)
        if begin.fit > replica.training.fit:  # by more than one if this ps has restarted
            self._check_begin(replica, begin)
            replica.record(r.Began(begin.fit, begin.last_version, begin.trainings))
            self._membership.reset_for_training()
        return self._status.job_state(replica)

    def _check_begin(self, replica: ShardReplica, begin: m.Begin) -> None:
        """Refuses an impossible training."""
        fit, version = replica.training.fit, replica.version
        if fit and begin.fit > fit + LIMITS.fits_missed:
            raise Refused(f"{self._task.name} is in training {fit}; training {begin.fit} cannot follow it.")
        # It may end before this version: the previous training run may have ended there on another ps.
        if version + LIMITS.updates < begin.last_version != m.UNLIMITED:
            raise Refused(
                f"a training run cannot end at version {begin.last_version}: {LIMITS.updates:,} updates or more "
                f"after version {version} of {replica.name}."
            )
        if any(one > other for one, other in pairwise(begin.trainings)):
            raise Refused("the global steps at which a job's training runs begin must not decrease.")

    def finish(self, replica: ShardReplica, _: m.Finish, __: Member) -> m.JobState:
        """Ends the training at the present version."""
        version, training = replica.require_primary().version, replica.training
        replica.record(r.Began(training.fit, min(training.last_version, version), training.trainings))
        return self._status.job_state(replica)

    def steer(self, replica: ShardReplica, steer: m.Steer, _: Member) -> m.JobState:
        """Sets a scalar in optimizer state."""
        if not math.isfinite(steer.value):
            raise Refused(f"the optimizer's state cannot be set to {steer.value}: it is not finite.")
        replica.require_primary()
        replica.record(r.Steered(steer.leaf, steer.value))
        return self._status.job_state(replica)

    def lease(self, replica: ShardReplica, lease: m.Lease, member: Member) -> LeaseAnswer:
        """Leases a piece of a data source."""
        if not member.live:  # its lease would never be released
            raise Refused(f"{member.task} has left the job and gets no more pieces of {lease.request.source!r}.")
        if not replica.is_primary:
            raise Refused(f"{self._task.name} does not hold {replica.name} or its data.", RefusalCode.MOVED)
        answer = replica.record(r.Leased(member.number, lease.request))
        assert answer is not None
        return answer
