"""Control: takes each control call to what answers it."""

from __future__ import annotations

from trainband.errors import RefusalCode, Refused, StreamClosed
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.server import permissions
from trainband.ps.server.checkpoint_calls import CheckpointCalls
from trainband.ps.server.job_membership import JobMembership
from trainband.ps.server.member_calls import MemberCalls
from trainband.ps.server.open_calls import OpenCalls
from trainband.ps.server.recording_orders import RecordingOrders
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.status import StatusReporter
from trainband.ps.server.task_state import TaskState
from trainband.runtime.formatting import printable
from trainband.wire.codec import decode, encode
from trainband.wire.limits import body_bytes
from trainband.wire.recording import RecordSteps
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
      recordings: of steps.
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
        recordings: RecordingOrders,
    ) -> None:
        self._task = task
        self._membership = membership
        self._members = membership.members
        self._replicas = replicas
        self._status = status
        self._open_calls = open_calls
        self._recordings = recordings
        self._actions = {**member_calls.actions, **checkpoint_calls.actions}

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
        """See `Handler.call`."""
        name, _, shard = action.partition("/")
        permissions.require_role(caller, name)
        if len(body) > body_bytes(name):
            raise Refused(
                f"{self._task.name} takes at most {body_bytes(name):,} bytes for {printable(name, 40)!r}, "
                f"and got {len(body):,}."
            )
        with self._task.lock:
            replica = self._replica(shard)
            if name == "state":
                return encode(self._status.job_state(replica))
            if name == "layout":
                return encode(self._status.layout())
            if name == "vacancy":
                return encode(self._open_calls.vacancy())
            if name == "recordings":
                return encode(self._recordings.recordings())
            if name == "record_steps":
                asked = decode(body, RecordSteps, f"whoever asked {self._task.name} to record steps")
                return encode(self._recordings.order(asked.steps))
        if name == "status":
            return encode(self._status.ps_status(replica))
        sender = f"whoever asked {self._task.name} to {name}"
        if name in self._open_calls.actions:
            kind, open_answer = self._open_calls.actions[name]
            return encode(open_answer(replica, decode(body, kind, sender), caller))
        if name not in self._actions:
            raise Refused(
                f"{self._task.name} knows no action {printable(name, 40)!r}; "
                "check that both run the same version of trainband."
            )
        kind, deed, answer = self._actions[name]
        record = decode(body, kind, sender)
        with self._task.lock:
            member = self._members.get_process(record.worker, record.incarnation)
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

    def _replica(self, shard: str) -> ShardReplica:
        """The replica of the shard that an action names; that of the ps's own shard where it names none."""
        if not shard:
            return self._replicas.home
        if len(shard) > 6 or not (shard.isascii() and shard.isdecimal()):  # more digits are no number to Python
            raise Refused(f"{self._task.name} has no replica of shard {printable(shard, 40)!r}.")
        return self._replicas.get(int(shard))
