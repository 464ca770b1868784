"""ShardReplicas: the replicas that a ps has, and what keeps each in step with the other one of its shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainband.errors import RefusalCode, Refused
from trainband.ps.membership.members import Members
from trainband.ps.replication.failover import Role
from trainband.ps.replication.replicator import Replicator
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.server.program import CompileProgram
from trainband.ps.server.task_state import TaskState
from trainband.wire.replication import arbiter_name
from trainband.wire.transport import Connection, Timeouts, Transport


class ShardReplicas:
    """A replica of the ps's own shard and, where shards have standbys, one of another.

    Args:
      task: what all parts of this ps share.
      members: who is in the job.
      transport: the way to the other ps; without one, no shard has a standby.
      compile_program: makes what runs an update program.
    """

    def __init__(
        self, task: TaskState, members: Members, transport: Transport | None, compile_program: CompileProgram
    ) -> None:
        self._task = task
        self._members = members
        self._transport = transport
        self._compile_program = compile_program
        self.by_shard: dict[int, ShardReplica] = {}
        self.replicators: dict[int, Replicator] = {}
        self.home = self.get(task.cluster.task.index)
        """That of the ps's own shard."""

    def __iter__(self) -> Iterator[ShardReplica]:
        return iter(self.by_shard.values())

    def get(self, shard: int) -> ShardReplica:
        """The replica of this shard. Made when it is first asked for.

        Raises:
          Refused: this ps has none.
        """
        mine, tasks = self._task.cluster.task.index, len(self._task.cluster.spec.ps)
        if shard not in self.by_shard:
            if shard not in (mine, (mine - 1) % tasks):
                raise Refused(f"{self._task.name} has no replica of shard {shard}.")
            self.by_shard[shard] = ShardReplica(
                shard,
                self._task.cluster,
                self._members,
                self._task.lock,
                self._task.directories,
                self._task.incarnation,
                self._task.runtime,
                self._compile_program,
            )
        return self.by_shard[shard]

    def replicator(self, replica: ShardReplica) -> Replicator:
        """What keeps a replica in step with the other one. Called under the lock."""
        if replica.number not in self.replicators:
            self.replicators[replica.number] = Replicator(
                replica,
                self._task.lock,
                connect=self._connect,
                arbiter=self._arbiter,
                names=self._worker_name,
                heard_s=self._heard_s,
                timeouts=self._task.timeouts,
                say=self._task.say,
                runtime=self._task.runtime,
            )
        return self.replicators[replica.number]

    def replicate(self, replica: ShardReplica) -> None:
        """Begins to keep a standby, where the shard is to have one. Called under the lock."""
        has_another = replica.model.description is not None and replica.model.description.standbys
        if has_another and self._transport is not None and not self._task.stopped:
            self.replicator(replica).start()

    def settle(self, replica: ShardReplica, position: int, given_up: Callable[[], bool]) -> None:
        """Returns when the standby, if there is one, has everything up to a record."""
        replicator = self.replicators.get(replica.number)
        if replicator is not None:
            replicator.sender.settle(position, lambda: self._task.stopped or given_up())

    def are_complete(self) -> bool:
        """Whether every shard that this ps holds or follows has all updates that were asked for."""
        held = [replica for replica in self if replica.failover.role in (Role.PRIMARY, Role.STANDBY)]
        return bool(held) and all(replica.model.complete for replica in held)

    def have_standbys(self) -> bool:
        """Whether another ps can hold any shard of this one."""
        descriptions = [replica.model.description for replica in self]
        return any(description is not None and description.standbys > 0 for description in descriptions)

    def require_uninvited(self, replica: ShardReplica) -> None:
        """Refuses values for a shard that another ps holds."""
        if not replica.is_primary and self._task.clock() - replica.invited_at < self._task.timeouts.lease_s:
            raise Refused(f"another ps has the values of {replica.name}.", RefusalCode.MOVED)

    def close(self, grace_s: float) -> None:
        """Stops the replicators, and gives the savers a moment to end. Called without the lock."""
        for replicator in list(self.replicators.values()):
            replicator.stop(grace_s)
        for replica in self:
            if replica.model.saver is not None:
                replica.model.saver.close(grace_s)

    def _connect(self, ps: int, timeouts: Timeouts) -> Connection:
        assert self._transport is not None
        return self._transport.connect(self._task.ps_addresses()[ps], timeouts)

    def _arbiter(self, present: str, other_host: str) -> str:
        """Which worker should decide who succeeds: the present one while it lives, else one on a third machine."""
        found = self._members.arbiter(present)
        if found is not None and found.live:
            return present
        live = sorted(self._members.live(), key=lambda member: member.number)
        elsewhere = [member for member in live if member.host not in (self._task.host, other_host)]
        return next((arbiter_name(member.incarnation) for member in (*elsewhere, *live)), present)

    def _heard_s(self, arbiter: str) -> float:
        """Seconds since a worker was heard; without end, if it is none of the job."""
        found = self._members.arbiter(arbiter)
        return self._task.clock() - max(found.heard_at, found.last_word_at) if found is not None else float("inf")

    def _worker_name(self, arbiter: str) -> str:
        found = self._members.arbiter(arbiter)
        return found.task if found is not None else "a worker"
