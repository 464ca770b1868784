"""ReservedPieces: data that a checkpoint reserves for workers until they return or a lease has passed."""

from __future__ import annotations

from trainband.ps.membership.members import Members
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.task_state import TaskState
from trainband.wire.messages import replication as r


class ReservedPieces:
    """When each shard adopted a checkpoint. Called under the lock."""

    def __init__(self, task: TaskState, members: Members, replicas: ShardReplicas) -> None:
        self._task = task
        self._members = members
        self._replicas = replicas
        self._adopted: dict[int, float] = {}

    def record_adopted(self, shard: int) -> None:
        """Notes that a shard has just adopted a checkpoint."""
        self._adopted[shard] = self._task.clock()

    def free(self) -> None:
        """Releases data reserved for workers that have not returned within a lease."""
        for number, since in list(self._adopted.items()):
            if self._task.clock() - since < self._task.timeouts.lease_s:
                continue
            del self._adopted[number]
            replica, live = self._replicas.by_shard[number], self._members.live()
            if replica.is_primary:
                holders = replica.sources.holders()
                for absent in sorted(holders - {member.number for member in live}):
                    replica.record(r.Released(absent))
                for paused in (member.number for member in live if member.paused):
                    if paused in holders:
                        replica.record(r.Released(paused, reserved=True))
