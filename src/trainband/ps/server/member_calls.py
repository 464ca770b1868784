"""MemberCalls: the control calls of workers that are in the job."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from msgspec import Struct

from trainband.data.leases import LeaseAnswer
from trainband.errors import RefusalCode, Refused
from trainband.ps.membership.members import Member
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.server.job_membership import JobMembership
from trainband.ps.server.recording_orders import RecordingOrders
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.status import StatusReporter
from trainband.ps.server.task_state import TaskState
from trainband.wire import messages as m
from trainband.wire import replication as r
from trainband.wire.limits import LIMITS
from trainband.wire.recording import Recorded

MemberAction = tuple[type[Any], str, Callable[[ShardReplica, Member, Any], Struct]]
"""The record that a call brings, the deed if it is one that only the chief may do, and what answers under the lock."""


class MemberCalls:
    """Heartbeats, the beginning and the end of a training, votes, leases of data, and recordings of steps.

    Args:
      task: what all parts of this ps share.
      membership: who is in the job.
      replicas: of the ps.
      status: answers with the state of the job.
      recordings: of steps.
    """

    def __init__(
        self,
        task: TaskState,
        membership: JobMembership,
        replicas: ShardReplicas,
        status: StatusReporter,
        recordings: RecordingOrders,
    ) -> None:
        self._task = task
        self._membership = membership
        self._accounts = membership.accounts
        self._replicas = replicas
        self._status = status
        self._recordings = recordings
        self.actions: Mapping[str, MemberAction] = {
            "heartbeat": (m.Heartbeat, "", self._heartbeat),
            "pause": (m.Pause, "", self._pause),
            "begin": (m.Begin, "begin a training", self._begin),
            "finish": (m.Finish, "end the training", self._finish),
            "steer": (m.Steer, "steer the optimizer", self._steer),
            "vote": (r.Vote, "", self._vote),
            "lease": (m.Lease, "", self._lease),
            "recorded": (Recorded, "", self._recorded),
        }

    def _heartbeat(self, replica: ShardReplica, member: Member, beat: m.Heartbeat) -> m.JobState:
        if member.has_left:
            return self._status.job_state(replica)  # nothing that comes late changes that
        account = self._accounts[member.number]
        account.blocked_by = beat.blocked_by
        account.note_spent(self._task.clock(), beat.spent)
        account.memory = beat.memory
        self._membership.note_first_batch(member, beat.first_batch)
        # A ps that holds a shard sees the pushes: these count more than one word, which may be belated.
        sees = any(one.is_primary for one in self._replicas)
        if beat.paused and (member.says_paused or not sees):
            self._membership.set_aside(member)
        elif member.paused and not beat.paused and not sees:
            member.paused = False
            self._membership.came(member)
        member.says_paused = beat.paused
        return self._status.job_state(replica)

    def _pause(self, replica: ShardReplica, member: Member, _: m.Pause) -> m.JobState:
        replica.model.require_held()
        if member.has_left:
            return self._status.job_state(replica)
        self._membership.set_aside(member)
        replica.journal.free_reserved(member.number)
        return self._status.job_state(replica)

    def _begin(self, replica: ShardReplica, _: Member, begin: m.Begin) -> m.JobState:
        if replica.model.updater is not None:
            replica.model.require_primary()
        if not replica.is_primary:
            raise Refused(f"{self._task.name} has no values yet, so training cannot begin.", RefusalCode.NOT_READY)
        if begin.fit > replica.model.fit:  # by more than one, if this ps has died and come back
            self._check_begin(replica, begin)
            replica.journal.begin(begin.fit, begin.last_version, begin.trainings)
            self._membership.lost = ""  # of a job before this one
            for account in self._accounts.values():
                account.pushed_at = self._task.clock()
        return self._status.job_state(replica)

    def _check_begin(self, replica: ShardReplica, begin: m.Begin) -> None:
        """Refuses a training that no chief begins."""
        fit, version = replica.model.fit, replica.version
        if fit and begin.fit > fit + LIMITS.fits_missed:
            raise Refused(f"{self._task.name} is in training {fit}, after which training {begin.fit} cannot come.")
        # It may end before the present version: the training before it has been ended there on another ps.
        if version + LIMITS.updates < begin.last_version != m.UNLIMITED:
            raise Refused(
                f"a training cannot end at version {begin.last_version}, which is {LIMITS.updates:,} updates or more "
                f"after version {version} of {replica.name}."
            )
        if any(one > other for one, other in pairwise(begin.trainings)):
            raise Refused("the trainings of a job begin one after the other, at global steps that do not decrease.")

    def _finish(self, replica: ShardReplica, _: Member, __: m.Finish) -> m.JobState:
        version = replica.model.require_primary().shard.version
        replica.journal.begin(replica.model.fit, min(replica.model.last_version, version), replica.model.trainings)
        return self._status.job_state(replica)

    def _steer(self, replica: ShardReplica, _: Member, steer: m.Steer) -> m.JobState:
        if not math.isfinite(steer.value):
            raise Refused(f"the optimizer's state is not set to {steer.value}, which is no finite number.")
        replica.journal.steer(steer.leaf, steer.value)
        return self._status.job_state(replica)

    def _vote(self, replica: ShardReplica, member: Member, vote: r.Vote) -> m.JobState:
        if replica.failover.term.arbiter == r.arbiter_name(member.incarnation):
            self._replicas.replicator(replica).votes.granted(vote.term, vote.yes, member.task)
        return self._status.job_state(replica)

    def _recorded(self, replica: ShardReplica, member: Member, recorded: Recorded) -> m.JobState:
        self._recordings.take(member.task, recorded.order, recorded.recording)
        return self._status.job_state(replica)

    def _lease(self, replica: ShardReplica, member: Member, lease: m.Lease) -> LeaseAnswer:
        if not member.live:  # nobody would ever take back what it got
            raise Refused(f"{member.task} has left the job, and gets no more pieces of {lease.request.source!r}.")
        if not replica.is_primary:
            raise Refused(
                f"{self._task.name} does not hold {replica.name}, and so none of its data.", RefusalCode.MOVED
            )
        return replica.journal.lease(member.number, lease.request)
