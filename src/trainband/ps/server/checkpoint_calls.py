"""CheckpointCalls: the control calls about checkpoints, and about what workers save beside the params."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import replace

from trainband.data.leases import PieceLedger
from trainband.errors import ProtocolError, RefusalCode, Refused
from trainband.model.worker_state import MOST_BESIDE_THE_MODEL_BYTES, MOST_MODELS, WorkerState
from trainband.ps.membership.members import Member, Members
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.server.member_calls import MemberAction
from trainband.ps.server.reserved_pieces import ReservedPieces
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.status import StatusReporter
from trainband.ps.server.task_state import TaskState
from trainband.ps.statistics import CheckpointStatus
from trainband.wire import messages as m
from trainband.wire.fields import GUESTS
from trainband.wire.limits import LIMITS


class CheckpointCalls:
    """Saving, restoring, and worker state.

    Args:
      task: what all parts of this ps share.
      members: who is in the job.
      replicas: of the ps.
      reserved_pieces: what a checkpoint has reserved for workers.
      status: answers with the state of the job.
    """

    def __init__(
        self,
        task: TaskState,
        members: Members,
        replicas: ShardReplicas,
        reserved_pieces: ReservedPieces,
        status: StatusReporter,
    ) -> None:
        self._task = task
        self._members = members
        self._replicas = replicas
        self._reserved_pieces = reserved_pieces
        self._status = status
        saving, restoring = "save a checkpoint", "restore a checkpoint"
        self.actions: Mapping[str, MemberAction] = {
            "worker_state": (m.LeftWorkerState, "", self._worker_state),
            "my_worker_state": (
                m.WorkerStateQuestion,
                "",
                lambda replica, member, _: _worker_state_of(replica, member),
            ),
            "landed": (m.Landed, saving, self._landed),
            "save": (m.Save, saving, self._save),
            "save_state": (m.SaveQuestion, saving, self._save_state),
            "restore": (
                m.Restore,
                restoring,
                lambda replica, _, order: replica.model.require_new_saver().restore(order),
            ),
            "restore_state": (
                m.RestoreQuestion,
                restoring,
                lambda replica, _, question: replica.model.require_new_saver().restore_state(question.token),
            ),
            "adopt": (m.Adopt, restoring, self._adopt),
        }

    def _worker_state(self, replica: ShardReplica, member: Member, worker_state: m.LeftWorkerState) -> m.JobState:
        self._check(replica, member.task, worker_state.data)
        # Of pushes that this shard has not seen, as where it was restored since, no checkpoint of it waits for a state.
        seen = replica.model.require_updater().rule.ledger.seen.get(member.number, 0)
        replica.journal.keep_worker_state(replace(worker_state, sequence=min(worker_state.sequence, max(0, seen))))
        return self._status.job_state(replica)

    def _landed(self, replica: ShardReplica, _: Member, landed: m.Landed) -> m.JobState:
        if not (math.isfinite(landed.seconds) and landed.seconds >= 0):
            raise Refused(f"a checkpoint cannot have taken {landed.seconds} s.")
        replica.model.checkpoint = CheckpointStatus(landed.global_step, landed.nbytes, landed.seconds)
        return self._status.job_state(replica)

    def _save(self, replica: ShardReplica, member: Member, save: m.Save) -> m.SaveState:
        if not replica.model.require_updater().shard.initialised:
            raise Refused(f"{self._task.name} has no values yet that it could save.", RefusalCode.NOT_READY)
        saver = replica.model.require_saver()
        if save.at > replica.version + LIMITS.updates:
            raise Refused(f"{self._task.name} is at version {replica.version}, and will not come to {save.at}.")
        saver.save(save)
        return self._save_state(
            replica, member, m.SaveQuestion(save.worker, save.incarnation, save.token, worker_state=False)
        )

    def _save_state(self, replica: ShardReplica, _: Member, question: m.SaveQuestion) -> m.SaveState:
        live = {member.number for member in self._members.live()}
        return replica.model.require_saver().state(question, live, self._members.name)

    def _check(self, replica: ShardReplica, task: str, data: bytes) -> None:
        """Refuses what would keep a checkpoint from being written, or from being restored.

        Raises:
          ProtocolError: it is no worker state, or not this worker's.
          Refused: it is larger than any worker's.
        """
        layout = replica.model.layout
        model_bytes = sum(shard.nbytes for shard in layout.shards) if layout is not None else 0
        most = MOST_BESIDE_THE_MODEL_BYTES + MOST_MODELS * model_bytes
        if len(data) > most:
            raise Refused(
                f"{self._task.name} keeps no worker state of {len(data):,} bytes: for this model, {most:,} are the "
                "most; keep less in the worker_transform, or in the position in the data."
            )
        state = WorkerState.received(data, task or "the chief")
        if task and state.task != task:
            raise ProtocolError(f"{task} sent the worker state of another worker.")

    def _adopt(self, replica: ShardReplica, member: Member, adopt: m.Adopt) -> m.Joined:
        for worker, data in adopt.worker_state.items():
            if not 0 <= worker < GUESTS:
                raise ProtocolError(f"{member.task} sent a worker state of worker {worker}, which no job has.")
            self._check(replica, "", data)
        for record in adopt.sources.values():
            PieceLedger.from_record(record)  # raises where it is none
        self._replicas.require_uninvited(replica)
        if adopt.version > LIMITS.updates:
            raise Refused(f"no checkpoint is of version {adopt.version}.")
        replica.adopt(adopt)
        self._reserved_pieces.note_adopted(replica.number)
        self._replicas.replicate(replica)
        return replica.joined(member)


def _worker_state_of(replica: ShardReplica, member: Member) -> m.WorkerStateAnswer:
    return replica.model.require_saver().worker_state_of(member.number)
