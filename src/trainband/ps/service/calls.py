"""The control calls of a ps: the message, the permitted callers and the handler of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from msgspec import Struct

from trainband.cluster.identity import Role
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.service.checkpoint_calls import CheckpointCalls
from trainband.ps.service.job_calls import JobCalls
from trainband.ps.service.membership_calls import MembershipCalls
from trainband.ps.service.replica_calls import ReplicaCalls
from trainband.ps.service.training_calls import TrainingCalls
from trainband.wire.messages import calls as m
from trainband.wire.messages import recording, replication


class By(Enum):
    """Who may make a call. The first four have only proved their role.

    A process may speak only for its own worker; the message names both. `JobMembership.require_chief` decides which
    worker is the chief.
    """

    OBSERVER = "observer"
    ADMIN = "admin"
    PS = "ps"
    WORKER = "worker"
    MEMBER = "member"
    """A worker that has joined."""
    CHIEF = "chief"
    """The worker acting as chief."""

    @property
    def role(self) -> Role:
        """The role the caller's credentials must prove."""
        return Role.WORKER if self.is_member else Role(self.value)

    @property
    def is_member(self) -> bool:
        """Whether callers must have joined."""
        return self in (By.MEMBER, By.CHIEF)


Handler = Callable[[ShardReplica, Any, Any], Struct]
"""Takes the replica, the message, and the calling `Member`, or the `Caller` if not a member."""


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of call.

    Attributes:
      message: the type of the body; `None` if that is empty.
      by: who may make it.
      handler: answers it, under the service's lock.
      deed: the chief's action, for error messages.
      settled: whether the answer waits until the standby has the change.
      locked: False if the handler is slow and takes the lock itself.
    """

    message: type[Struct] | None
    by: By
    handler: Handler
    deed: str = ""
    settled: bool = False
    locked: bool = True


def make_calls(
    job: JobCalls,
    membership: MembershipCalls,
    training: TrainingCalls,
    checkpoints: CheckpointCalls,
    replicas: ReplicaCalls,
) -> Mapping[str, Call]:
    """All calls by name."""
    save, restore = "save a checkpoint", "restore a checkpoint"
    return {
        "state": Call(None, By.OBSERVER, job.state),
        "status": Call(None, By.OBSERVER, job.status, locked=False),
        "layout": Call(None, By.OBSERVER, job.layout),
        # Changes nothing in the job and costs as little as `state`.
        "record_steps": Call(recording.RecordSteps, By.OBSERVER, job.record_steps),
        "recordings": Call(None, By.OBSERVER, job.recordings),
        "recorded": Call(recording.Recorded, By.MEMBER, job.recorded),
        "shutdown": Call(m.Shutdown, By.ADMIN, job.shutdown),
        "vacancy": Call(None, By.WORKER, membership.vacancy),
        "join": Call(m.Join, By.WORKER, membership.join),
        "leave": Call(m.Leave, By.WORKER, membership.leave),
        "heartbeat": Call(m.Heartbeat, By.MEMBER, membership.heartbeat),
        "pause": Call(m.Pause, By.MEMBER, membership.pause, settled=True),
        "define": Call(m.Define, By.CHIEF, training.define, deed="define the model", locked=False),
        "begin": Call(m.Begin, By.CHIEF, training.begin, deed="begin a training run", settled=True),
        "finish": Call(m.Finish, By.CHIEF, training.finish, deed="end the training", settled=True),
        "steer": Call(m.Steer, By.CHIEF, training.steer, deed="steer the optimizer", settled=True),
        "lease": Call(m.Lease, By.MEMBER, training.lease, settled=True),
        "worker_state": Call(m.LeftWorkerState, By.MEMBER, checkpoints.worker_state, settled=True),
        "my_worker_state": Call(m.WorkerStateQuestion, By.MEMBER, checkpoints.my_worker_state),
        "committed": Call(m.Committed, By.CHIEF, checkpoints.committed, deed=save),
        "save": Call(m.Save, By.CHIEF, checkpoints.save, deed=save),
        "save_state": Call(m.SaveQuestion, By.CHIEF, checkpoints.save_state, deed=save),
        "restore": Call(m.Restore, By.CHIEF, checkpoints.restore, deed=restore),
        "restore_state": Call(m.RestoreQuestion, By.CHIEF, checkpoints.restore_state, deed=restore),
        "adopt": Call(m.Adopt, By.CHIEF, checkpoints.adopt, deed=restore),
        "invite": Call(m.Invite, By.PS, replicas.invite, locked=False),
        "vote": Call(replication.Vote, By.MEMBER, replicas.vote),
    }
