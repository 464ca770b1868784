"""Control: checks control calls and passes them to their handlers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from trainband.errors import RefusalCode, Refused, StreamClosed
from trainband.ps.membership.members import Member
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.service.calls import By, Call
from trainband.ps.service.job_membership import JobMembership
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.task_state import TaskState
from trainband.runtime.formatting import printable
from trainband.wire.limits import body_bytes
from trainband.wire.messages.codec import decode, encode
from trainband.wire.transport import ANYBODY, Caller


class Control:
    """Control dispatcher of a ps."""

    def __init__(
        self, task: TaskState, membership: JobMembership, replicas: ShardReplicas, calls: Mapping[str, Call]
    ) -> None:
        self._task = task
        self._membership = membership
        self._replicas = replicas
        self.calls = calls

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
        name, _, shard = action.partition("/")
        call = self.calls.get(name)
        role = (call.by if call is not None else By.WORKER).role
        caller.require(frozenset({role}), f"ask for {printable(name, 40)!r}")
        if len(body) > body_bytes(name):
            raise Refused(
                f"{self._task.name} takes at most {body_bytes(name):,} bytes for {printable(name, 40)!r} "
                f"but got {len(body):,}."
            )
        with self._task.lock:
            replica = self._replica(shard)
        if call is None:
            raise Refused(
                f"{self._task.name} has no action {printable(name, 40)!r}; "
                "check that both run the same version of trainband."
            )
        sender = f"the caller of {name} on {self._task.name}"
        message = decode(body, call.message, sender) if call.message is not None else None
        answer, position = self._answer(call, name, replica, message, caller)
        if call.settled:
            try:
                self._replicas.settle(replica, position, lambda: False)
            except StreamClosed as exc:  # this ps is ending; another may take the shard
                raise Refused(
                    f"{self._task.name} is ending; the standby of {replica.name} lacks this.", RefusalCode.MOVED
                ) from exc
        return encode(answer)  # without the lock: worker state may be large

    def _answer(
        self, call: Call, name: str, replica: ShardReplica, message: Struct | None, caller: Caller
    ) -> tuple[Struct, int]:
        """Returns the answer and the position of its last record."""
        with self._task.lock:
            who = self._member(call, name, message, caller) if call.by.is_member else caller
            if call.locked:
                return call.handler(replica, message, who), replica.failover.position
        return call.handler(replica, message, who), 0

    def _member(self, call: Call, name: str, message: Any, caller: Caller) -> Member:
        """Returns the member that a message names and notes it as alive.

        Raises:
          Refused: the caller is another process, or not the chief though it must be.
        """
        member = self._membership.members.get_process(message.worker, message.incarnation)
        caller.require_self(member.task, member.incarnation, f"ask for {name!r}")
        if call.by is By.CHIEF:
            self._membership.require_chief(member, call.deed)
        self._membership.record_contact(member)
        return member

    def _replica(self, shard: str) -> ShardReplica:
        """Returns the replica of the shard that an action names, by default the ps's own shard."""
        if not shard:
            return self._replicas.home
        if len(shard) > 6 or not (shard.isascii() and shard.isdecimal()):  # `int` rejects very long numbers
            raise Refused(f"{self._task.name} has no replica of shard {printable(shard, 40)!r}.")
        return self._replicas.get(int(shard))
