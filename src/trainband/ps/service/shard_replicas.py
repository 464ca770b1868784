"""ShardReplicas: the replicas of a ps, and their replicators."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainband.cluster.identity import Role as TaskRole
from trainband.errors import RefusalCode, Refused
from trainband.ps.membership.arbiter_choice import ArbiterChoice
from trainband.ps.membership.members import Members
from trainband.ps.program.compiled_program import CompileProgram
from trainband.ps.replication.failover import Role
from trainband.ps.replication.replica_places import replica_places
from trainband.ps.replication.replicator.replicator import Replicator
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.task_state import TaskState
from trainband.wire.transport import Caller, Connection, Timeouts, Transport


class ShardReplicas:
    """Replicas of the ps's own shard and, if shards have standbys, of another.

    Args:
      transport: to the other ps; without one, no shard has a standby.
    """

    def __init__(
        self, task: TaskState, members: Members, transport: Transport | None, compile_program: CompileProgram
    ) -> None:
        self._task = task
        self._members = members
        self._transport = transport
        self._compile_program = compile_program
        self._arbiters = ArbiterChoice(members, task.host, task.clock)
        self.by_shard: dict[int, ShardReplica] = {}
        self.replicators: dict[int, Replicator] = {}
        self.home = self.get(task.cluster.task.index)
        """The replica of the ps's own shard."""

    def __iter__(self) -> Iterator[ShardReplica]:
        return iter(self.by_shard.values())

    def get(self, shard: int) -> ShardReplica:
        """Returns the replica of this shard, created on first use.

        Raises:
          Refused: this ps has none.
        """
        if shard not in self.by_shard:
            if self._task.cluster.task.index not in self._places(shard):
                raise Refused(f"{self._task.name} has no replica of shard {shard}.")
            self.by_shard[shard] = ShardReplica(shard, self._task, self._members, self._compile_program)
        return self.by_shard[shard]

    def require_partner(self, caller: Caller, shard: int, ps: int) -> None:
        """Raises `Refused` unless the caller is `ps` and may have the other replica of the shard."""
        caller.require(frozenset({TaskRole.PS}), "send a shard's records")
        if caller.identity is not None and caller.identity.name != f"ps:{ps}":
            raise Refused(f"{caller.identity.name} may not send records in the name of ps:{ps}.", RefusalCode.FORBIDDEN)
        if ps == self._task.cluster.task.index or ps not in self._places(shard):
            raise Refused(f"ps:{ps} has no replica of shard {shard} for {self._task.name} to follow.")

    def _places(self, shard: int) -> tuple[int, ...]:
        return replica_places(shard, len(self._task.cluster.spec.ps))

    def replicator(self, replica: ShardReplica) -> Replicator:
        """Returns a replica's replicator. Called under the lock."""
        if replica.number not in self.replicators:
            self.replicators[replica.number] = Replicator(replica, self._task, self._connect, self._arbiters)
        return self.replicators[replica.number]

    def replicate(self, replica: ShardReplica) -> None:
        """Starts replication if the shard should have a standby. Called under the lock."""
        description = replica.description
        if description is not None and description.standbys and self._transport is not None and not self._task.stopped:
            self.replicator(replica).start()

    def settle(self, replica: ShardReplica, position: int, given_up: Callable[[], bool]) -> None:
        """Waits until the standby, if any, has everything up to a record."""
        replicator = self.replicators.get(replica.number)
        if replicator is not None:
            replicator.sender.settle(position, lambda: self._task.stopped or given_up())

    def are_complete(self) -> bool:
        """Whether every shard that this ps holds or follows has all requested updates."""
        held = [replica for replica in self if replica.failover.role in (Role.PRIMARY, Role.STANDBY)]
        return bool(held) and all(replica.complete for replica in held)

    def have_standbys(self) -> bool:
        """Whether another ps can hold any shard of this one."""
        descriptions = [replica.description for replica in self]
        return any(description is not None and description.standbys > 0 for description in descriptions)

    def members_changed(self) -> None:
        """Wakes the replicators because a worker has gone. Called under the lock."""
        for replicator in self.replicators.values():
            replicator.changed()

    def await_all_applied(self, replica: ShardReplica) -> None:
        """Waits until a replica has applied all that its primary sent. Called under the lock.

        Raises:
          Refused: it is slow.
        """
        if replica.number in self.replicators:
            self.replicators[replica.number].receiver.await_all_applied()

    def voted(self, replica: ShardReplica, term: int, yes: bool, by: str) -> None:
        """Records the vote of a term's arbiter. Called under the lock."""
        self.replicator(replica).vote_requests.granted(term, yes, by)

    def require_uninvited(self, replica: ShardReplica) -> None:
        """Refuses values for a shard that another ps holds."""
        if not replica.is_primary and self._task.clock() - replica.invited_at < self._task.timeouts.lease_s:
            raise Refused(f"another ps has the values of {replica.name}.", RefusalCode.MOVED)

    def close(self, grace_s: float) -> None:
        """Stops the replicators and gives the savers `grace_s` to end. Called without the lock."""
        for replicator in list(self.replicators.values()):
            replicator.stop(grace_s)
        for replica in self:
            if replica.saver is not None:
                replica.saver.close(grace_s)

    def _connect(self, ps: int, timeouts: Timeouts) -> Connection:
        assert self._transport is not None
        return self._transport.connect(self._task.ps_addresses()[ps], timeouts)
