"""ReservedPieces: the data that a checkpoint has reserved for workers, until they are back or a lease has passed."""

from __future__ import annotations

from trainband.ps.membership.members import Members
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.task_state import TaskState


class ReservedPieces:
    """When which shard has adopted a checkpoint. Called under the lock.

    Args:
      task: what all parts of this ps share.
      members: who is in the job.
      replicas: of the ps.
    """

    def __init__(self, task: TaskState, members: Members, replicas: ShardReplicas) -> None:
        self._task = task
        self._members = members
        self._replicas = replicas
        self._adopted: dict[int, float] = {}

    def note_adopted(self, shard: int) -> None:
        """A shard has taken the values of a checkpoint now."""
        self._adopted[shard] = self._task.clock()

    def free(self) -> None:
        """What a checkpoint has reserved for workers goes to others, if they have not come back within a lease."""
        for number, since in list(self._adopted.items()):
            if self._task.clock() - since < self._task.timeouts.lease_s:
                continue
            del self._adopted[number]
            replica, live = self._replicas.by_shard[number], self._members.live()
            if replica.is_primary:
                replica.journal.free_pieces({member.number for member in live})
                for paused in (member.number for member in live if member.paused):
                    replica.journal.free_reserved(paused)
