"""CheckpointCalls: the control calls for checkpoints and worker state."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainband.data.leases import PieceLedger
from trainband.errors import ProtocolError, RefusalCode, Refused
from trainband.job.checkpoints import CheckpointStatus
from trainband.model.worker_state import MOST_BESIDE_THE_MODEL_BYTES, MOST_MODELS, WorkerState
from trainband.ps.membership.members import Member, Members
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.service.reserved_pieces import ReservedPieces
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.service.status import StatusReporter
from trainband.ps.task_state import TaskState
from trainband.wire.limits import LIMITS
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r
from trainband.wire.messages.fields import ELASTIC_BASE


@dataclass(eq=False)
class CheckpointCalls:
    """Saving, restoring, and worker state."""

    _task: TaskState
    _members: Members
    _replicas: ShardReplicas
    _reserved_pieces: ReservedPieces
    _status: StatusReporter

    def worker_state(self, replica: ShardReplica, worker_state: m.LeftWorkerState, member: Member) -> m.JobState:
        """Keeps a worker's state, unless it is elastic: no later job has a place for it."""
        self._check(replica, member.task, worker_state.data)
        # A shard restored since has not seen these pushes, and none of its checkpoints waits for their state.
        sequence = min(worker_state.sequence, max(0, replica.require_updater().seen(member.number)))
        replica.require_saver()
        if member.number < ELASTIC_BASE:
            replica.record(r.Kept(member.number, sequence, worker_state.data))
        return self._status.job_state(replica)

    def my_worker_state(self, replica: ShardReplica, _: m.WorkerStateQuestion, member: Member) -> m.WorkerStateAnswer:
        """Returns a worker's state."""
        return replica.require_saver().worker_state_of(member.number)

    def committed(self, replica: ShardReplica, committed: m.Committed, _: Member) -> m.JobState:
        if not (math.isfinite(committed.seconds) and committed.seconds >= 0):
            raise Refused(f"a checkpoint cannot have taken {committed.seconds} s.")
        replica.checkpoint = CheckpointStatus(committed.global_step, committed.nbytes, committed.seconds)
        return self._status.job_state(replica)

    def save(self, replica: ShardReplica, save: m.Save, _: Member) -> m.SaveState:
        """Orders a part of a checkpoint."""
        if not replica.require_updater().shard.initialised:
            raise Refused(f"{self._task.name} has no values to save yet.", RefusalCode.NOT_READY)
        saver = replica.require_saver()
        if save.at > replica.version + LIMITS.updates:
            raise Refused(f"{self._task.name} is at version {replica.version} and cannot reach {save.at}.")
        return saver.save(save)

    def save_state(self, replica: ShardReplica, question: m.SaveQuestion, _: Member) -> m.SaveState:
        """Returns the progress of a save."""
        live = {member.number for member in self._members.live()}
        return replica.require_saver().state(question, live, self._members.name)

    def restore(self, replica: ShardReplica, order: m.Restore, _: Member) -> m.RestoreState:
        """Starts reading a shard's part of a checkpoint."""
        return replica.require_saver(held=False).restore(order)

    def restore_state(self, replica: ShardReplica, question: m.RestoreQuestion, _: Member) -> m.RestoreState:
        """Returns its progress."""
        return replica.require_saver(held=False).restore_state(question.token)

    def _check(self, replica: ShardReplica, task: str, data: bytes) -> None:
        """Refuses state that would prevent a checkpoint from being written or restored.

        Raises:
          ProtocolError: it is invalid, or another worker's.
          Refused: it is too large.
        """
        shards = replica.definition.layout.shards if replica.definition is not None else ()
        model_bytes = sum(shard.nbytes for shard in shards)
        most = MOST_BESIDE_THE_MODEL_BYTES + MOST_MODELS * model_bytes
        if len(data) > most:
            raise Refused(
                f"{self._task.name} refuses worker state of {len(data):,} bytes: this model's limit is {most:,} "
                "bytes; keep less in the worker_transform or in the data position."
            )
        state = WorkerState.received(data, task or "the chief")
        if task and state.task != task:
            raise ProtocolError(f"{task} sent the worker state of another worker.")

    def adopt(self, replica: ShardReplica, adopt: m.Adopt, member: Member) -> m.Joined:
        """Adopts the values that were read."""
        for worker, data in adopt.worker_state.items():
            if not 0 <= worker < ELASTIC_BASE:
                raise ProtocolError(f"{member.task} sent state of worker {worker}, which cannot exist.")
            self._check(replica, "", data)
        for record in adopt.sources.values():
            PieceLedger.from_record(record)  # raises if invalid
        self._replicas.require_uninvited(replica)
        if adopt.version > LIMITS.updates:
            raise Refused(f"no checkpoint has version {adopt.version}.")
        replica.adopt(adopt)
        self._reserved_pieces.record_adopted(replica.number)
        self._replicas.replicate(replica)
        return self._status.joined(replica, member)
