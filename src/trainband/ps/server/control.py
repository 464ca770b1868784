"""Control: takes each control call to what answers it."""

from __future__ import annotations

from trainband.errors import RefusalCode, Refused, StreamClosed
from trainband.ps.server import permissions
from trainband.ps.server.checkpoint_calls import CheckpointCalls
from trainband.ps.server.job_membership import JobMembership
from trainband.ps.server.member_calls import MemberCalls
from trainband.ps.server.open_calls import OpenCalls
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.status import StatusReporter
from trainband.ps.server.task_state import TaskState
from trainband.wire.codec import decode, encode
from trainband.wire.transport import ANYBODY, Caller

SETTLED = ("begin", "finish", "lease", "worker_state", "pause", "steer")
"""The calls that are answered when the standby has what they have changed."""


class Control:
    """The control calls of a ps.

    Args:
      task: what all parts of this ps share.
      membership: who is in the job.
      replicas: of the ps, one of which each call is about.
      status: for those who only look.
      open_calls: what anybody may ask.
      member_calls, checkpoint_calls: what only a member may ask. Done under the lock.
    """

    def __init__(
        self,
        task: TaskState,
        membership: JobMembership,
        replicas: ShardReplicas,
        status: StatusReporter,
        open_calls: OpenCalls,
        member_calls: MemberCalls,
        checkpoint_calls: CheckpointCalls,
    ) -> None:
        self._task = task
        self._membership = membership
        self._members = membership.members
        self._replicas = replicas
        self._status = status
        self._open_calls = open_calls
        self._actions = {**member_calls.actions, **checkpoint_calls.actions}

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
        """See `Handler.call`."""
        name, _, shard = action.partition("/")
        permissions.require_role(caller, name)
        with self._task.lock:
            replica = self._replicas.home if not shard.isdecimal() else self._replicas.get(int(shard))
            if name == "state":
                return encode(self._status.job_state(replica))
            if name == "vacancy":
                return encode(self._open_calls.vacancy())
        if name == "status":
            return encode(self._status.ps_status(replica))
        sender = f"whoever asked {self._task.name} to {name}"
        if name in self._open_calls.actions:
            kind, open_answer = self._open_calls.actions[name]
            return encode(open_answer(replica, decode(body, kind, sender), caller))
        if name not in self._actions:
            raise Refused(
                f"{self._task.name} knows no action {name!r}; check that both run the same version of trainband."
            )
        kind, deed, answer = self._actions[name]
        record = decode(body, kind, sender)
        with self._task.lock:
            member = self._members.get(record.worker)
            if getattr(record, "incarnation", "") not in ("", member.incarnation):
                raise Refused(f"another process has taken the place of {member.task} in the job.", RefusalCode.REPLACED)
            permissions.require_member(caller, member, f"ask for {name!r}")
            if deed:
                self._membership.require_chief(member, deed)
            self._membership.hear(member)
            answered = answer(replica, member, record)
            position = replica.failover.position
        if name in SETTLED:
            try:
                self._replicas.settle(replica, position, lambda: False)
            except StreamClosed as exc:  # this ps ends: another one may hold the shard soon
                raise Refused(
                    f"{self._task.name} ends before the standby of {replica.name} has this.", RefusalCode.MOVED
                ) from exc
        return encode(answered)  # without the lock: worker state may be large
