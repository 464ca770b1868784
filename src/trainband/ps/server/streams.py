"""Streams: each worker's pushes and pulls, and the records of the primary of another replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DeadlineExceeded, ProtocolError, RefusalCode, Refused, StreamClosed, TrainbandError
from trainband.model.layout import ShardLayout
from trainband.ps.membership.members import Member
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.rules.base import ENOUGH, RuleError
from trainband.ps.rules.base import Push as PushEvent
from trainband.ps.server import permissions
from trainband.ps.server.gradients import all_finite, not_finite, widened
from trainband.ps.server.job_membership import JobMembership
from trainband.ps.server.readers import Readers
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.status import Traffic
from trainband.ps.server.task_state import TaskState
from trainband.runtime.formatting import printable
from trainband.runtime.step_recording import PushMoments
from trainband.runtime.waiting import NOTICE_EVERY_S, Waiting
from trainband.wire import following as w
from trainband.wire import messages as m
from trainband.wire import replication as r
from trainband.wire.codec import decode_any, encode
from trainband.wire.limits import LIMITS
from trainband.wire.transport import ANYBODY, Caller, Frame, Stream

WAIT_S = 0.2
"""Between two looks whether a worker still lives whose push waits for others."""


class Streams:
    """Serves streams, each in a thread of the transport.

    Args:
      task: what all parts of this ps share.
      membership: who is in the job.
      replicas: of the ps, one of which each stream is about.
      traffic: counts what the streams of workers carry.
      readers: who only reads is theirs.
    """

    def __init__(
        self,
        task: TaskState,
        membership: JobMembership,
        replicas: ShardReplicas,
        traffic: Traffic,
        readers: Readers,
    ) -> None:
        self._task = task
        self._membership = membership
        self._members = membership.members
        self._accounts = membership.accounts
        self._replicas = replicas
        self._traffic = traffic
        self._readers = readers
        self._non_finite_said = -NOTICE_EVERY_S

    def serve(self, stream: Stream, caller: Caller = ANYBODY) -> None:
        """Serves one worker, a reader, or the primary of another replica, for as long as it lives."""
        member: Member | None = None
        bootstrapping = False
        try:
            opened = self._opened(stream, caller)
            if isinstance(opened, r.ReplicationHello):
                with self._task.lock:
                    replicator = self._replicas.replicator(self._replicas.get(opened.shard))
                replicator.taker.follow(stream, opened, lambda: self._task.stopped)
                return
            if isinstance(opened, w.Follow):
                self._readers.serve(stream, opened, caller)
                return
            if opened is None:
                return
            member, replica, bootstrapping = opened
            while not self._task.stopped:
                shard = replica.model.shard
                stream.most_bytes = LIMITS.frame_bytes if shard is None else shard.layout.nbytes
                frame = stream.receive(self._task.timeouts.heartbeat_s)
                if frame is None:
                    continue
                message: m.Upward = _decoded(frame, m.Upward, member.task)
                if isinstance(message, m.Push):
                    self._push(stream, replica, member, message, frame.body)
                elif isinstance(message, m.Assign):
                    self._assign(replica, member, message, frame.body)
                    self._send_params(stream, replica, member, m.APPLIED, 0, "")
                elif isinstance(message, m.Pull):
                    self._send_params(stream, replica, member, m.APPLIED, 0, "")
                elif isinstance(message, m.Initialise):
                    self._initialise(replica, member, frame.body)
                    self._send_params(stream, replica, member, m.APPLIED, 0, "")
                else:
                    raise ProtocolError(f"{member.task} opened its stream twice.")
        except (StreamClosed, DeadlineExceeded):
            pass  # the worker's end is gone: what that means for the job is decided below
        except (TrainbandError, RuleError) as exc:
            self._fail(stream, exc)
        finally:
            stream.close()
            if member is not None and not bootstrapping:
                self._membership.stream_ended(member)

    def _opened(
        self, stream: Stream, caller: Caller
    ) -> tuple[Member, ShardReplica, bool] | r.ReplicationHello | w.Follow | None:
        """Who has opened a stream, and whether for first values only; `None` where this ps ends first."""
        waiting = Waiting(self._task.timeouts.connect_s, self._task.say, self._task.clock)
        stream.most_bytes = 0  # a name has no body
        while not self._task.stopped:
            frame = stream.receive(self._task.timeouts.heartbeat_s)
            if frame is not None:
                message: m.Upward | r.ReplicationHello | w.Follow = _decoded(
                    frame, m.Upward | r.ReplicationHello | w.Follow, stream.peer
                )
                if isinstance(message, w.Follow):
                    return message
                if isinstance(message, r.ReplicationHello):
                    permissions.require_primary(caller, message.ps)
                    stream.most_bytes = LIMITS.frame_bytes
                    return message
                if not isinstance(message, m.Open):
                    raise ProtocolError(f"{stream.peer} did not say who it is before anything else.")
                with self._task.lock:
                    member = self._members.get(message.worker)
                    if member.incarnation != message.incarnation:
                        raise Refused(
                            f"worker number {message.worker} is another process now.", RefusalCode.UNKNOWN_WORKER
                        )
                    permissions.require_member(caller, member, "open a stream")
                    replica = self._replicas.home if message.shard < 0 else self._replicas.get(message.shard)
                    member.streams += not message.bootstrapping
                    self._accounts[member.number].transport = stream.transport
                    self._membership.hear(member)
                return member, replica, message.bootstrapping
            waiting.check(f"the first word of {stream.peer}", "it opened a stream and says nothing")
        return None

    def _fail(self, stream: Stream, exc: Exception) -> None:
        why = printable(str(exc), LIMITS.failure_length)
        if self._task.refusals.note(stream.peer, "a stream", exc):
            self._task.say(f"refused {stream.peer}: {why}")
        try:
            stream.send(encode(m.Failure(why, exc.code if isinstance(exc, Refused) else RefusalCode.OTHER)))
        except (StreamClosed, DeadlineExceeded):
            return

    def _initialise(self, replica: ShardReplica, member: Member, body: Sequence[NDArray[np.uint8]]) -> None:
        with self._task.lock:
            self._membership.require_chief(member, "initialise the variables")
            shard = replica.model.require_updater().shard
            if shard.initialised:
                return
            self._replicas.require_uninvited(replica)
            blocks = shard.layout.from_wire(body)
            if blocks is None:
                raise ProtocolError(f"{member.task} sent first values of another size than it defined.")
            replica.initialise(blocks)
            self._replicas.replicate(replica)

    def _assign(
        self, replica: ShardReplica, member: Member, assign: m.Assign, body: Sequence[NDArray[np.uint8]]
    ) -> None:
        with self._task.lock:
            self._membership.hear(member)
            if member.has_left:
                raise Refused(f"{member.task} has left the job, and assigns nothing more.")
            layout = replica.model.require_primary().shard.layout
            blocks = layout.from_wire(body)
            if blocks is None:
                raise ProtocolError(f"{member.task} assigned values of other sizes than were defined.")
            replica.journal.assign(assign, blocks)

    def _push(
        self, stream: Stream, replica: ShardReplica, member: Member, push: m.Push, body: Sequence[NDArray[np.uint8]]
    ) -> None:
        replica.model.require_held()
        updater = replica.model.updater
        if updater is None or not updater.shard.initialised:
            raise ProtocolError(f"{member.task} pushed a gradient that does not fit this shard (it has no values yet).")
        layout, came_at = updater.shard.layout, self._task.clock()
        wire_dtype = replica.model.description.wire_dtype if replica.model.description else ""
        gradient = layout.from_wire(body, wire_dtype)
        if gradient is None:
            raise ProtocolError(
                f"{member.task} pushed a gradient that does not fit this shard (other sizes than were defined)."
            )
        if wire_dtype:
            gradient = widened(gradient, [block.dtype for block in layout.blocks])
        finite = push.finite and all_finite([g for g, b in zip(gradient, layout.blocks, strict=True) if b.trained])
        with self._task.lock:
            self._membership.hear(member)
            if member.has_left:
                raise Refused(f"{member.task} has left the job, and pushes no more.")
            replica.model.require_primary()
            account = self._accounts[member.number]
            self._members.pushed(member)
            member.says_paused = False
            if member.paused:
                member.paused = False
                self._membership.came(member)
            account.note_push(self._task.clock(), push.examples)
            arrived = sum(raw.nbytes for raw in body)
            self._traffic.bytes_in += arrived
            self._traffic.bytes_saved += layout.nbytes - arrived
            late = 0 < push.fit < replica.model.fit  # the training that it belongs to is over
            if late:
                account.dropped += 1
            elif not finite:
                account.refused += 1
                detail = self._non_finite(member, push, layout, gradient, account.refused)
            else:
                account.note_loss(push.loss)
                event = PushEvent(member.number, push.sequence, push.version, push.examples, push.workload)
                taken_at = self._task.clock() if push.recorded else 0.0
                pending = replica.journal.push(event, gradient)
        if late:
            self._send_params(stream, replica, member, m.DROPPED, 0, ENOUGH, over=True)
            return
        if not finite:
            self._send_params(stream, replica, member, m.NON_FINITE, 0, detail)
            return
        while not pending.answered.wait(WAIT_S):
            if self._task.stopped or not stream.alive:
                raise StreamClosed(f"{member.task} has gone while its push waited for others.")
        if pending.outcome != m.APPLIED:
            account.dropped += 1
        elif not pending.detail:
            account.note_update(pending.staleness)
        moments = (came_at, taken_at, *pending.updated, self._task.clock()) if push.recorded else None
        self._send_params(
            stream,
            replica,
            member,
            pending.outcome,
            pending.staleness,
            pending.detail,
            came_at=came_at,
            moments=moments,
        )

    def _send_params(
        self,
        stream: Stream,
        replica: ShardReplica,
        member: Member,
        outcome: int,
        staleness: int,
        detail: str,
        *,
        over: bool = False,
        came_at: float | None = None,
        moments: tuple[float, float, float, float, float] | None = None,
    ) -> None:
        with self._task.lock:
            updater = replica.model.require_primary()
            shard = updater.shard
            version, position = shard.acquire(), replica.failover.position
            self._traffic.bytes_out += shard.layout.nbytes
            updater.remember(member.number, version)
            done = over or (replica.model.fit > 0 and version.number >= replica.model.last_version)
            share = updater.rule.share(member.number)
            worker_state = replica.model.saver.wanted(member.number) if replica.model.saver is not None else 0
        try:
            # Whatever is in these params, the standby has too.
            self._replicas.settle(replica, position, lambda: not stream.alive)
            now = self._task.clock()
            held_s = 0.0 if came_at is None else max(0.0, now - came_at)
            noted = None if moments is None else PushMoments(*moments, now)
            stream.send(
                encode(m.Params(version.number, outcome, staleness, done, detail, worker_state, share, held_s, noted)),
                version.arrays(),
            )
        finally:
            with self._task.lock:
                shard.release(version)

    def _non_finite(
        self, member: Member, push: m.Push, layout: ShardLayout, gradient: Sequence[NDArray[Any]], count: int
    ) -> str:
        bad = not_finite(layout, gradient)
        text = (
            f"refused a gradient of {member.task} that is not finite"
            f" (push {push.sequence}, computed from version {push.version}, loss {push.loss:g}"
            + (f", in {', '.join(bad[:3])}" if bad else "")
            + f"; {count} so far)"
        )
        if self._task.clock() - self._non_finite_said >= NOTICE_EVERY_S:
            self._non_finite_said = self._task.clock()
            self._task.say(text)
        return text


def _decoded(frame: Frame, kind: Any, sender: str) -> Any:
    """What a worker says in the header of a frame."""
    if len(frame.header) > LIMITS.control_bytes:
        raise ProtocolError(f"{sender} sent a frame with a header of {len(frame.header):,} bytes.")
    return decode_any(frame.header, kind, sender)
