"""Streams: serves workers' pushes and pulls, readers, and the records of a primary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DeadlineExceeded, ProtocolError, RefusalCode, Refused, StreamClosed, TrainbandError
from trainband.ps.membership.accounts import Account
from trainband.ps.membership.members import Member
from trainband.ps.program.gradients import all_finite, not_finite, widened
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.rules.base import ALL_UPDATES_MADE, RuleError
from trainband.ps.rules.base import Push as PushEvent
from trainband.ps.service.job_membership import JobMembership
from trainband.ps.service.readers import Readers
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.service.status import Traffic
from trainband.ps.shard.pushed import arrays_of_push, gradient_from_wire
from trainband.ps.shard.shard import Shard
from trainband.ps.task_state import TaskState
from trainband.runtime.formatting import printable
from trainband.runtime.step_recording import PushMoments
from trainband.runtime.waiting import NOTICE_EVERY_S, Waiting
from trainband.wire.frame import Frame
from trainband.wire.limits import LIMITS
from trainband.wire.messages import calls as m
from trainband.wire.messages import following as w
from trainband.wire.messages import replication as r
from trainband.wire.messages.codec import decode_any, encode
from trainband.wire.transport import ANYBODY, Caller, Stream

WAIT_S = 0.2
"""Seconds between liveness checks of a worker whose push is waiting."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Result of a push, sent with the params.

    Attributes:
      outcome, staleness, detail: of its push.
      over: whether the push's training is over.
      is_to_push: whether it answers a push, for which the params may be narrowed.
      came_at: when the push came if it was applied or dropped.
      moments: those of the push so far, if it is recorded.
      asked: the ids whose rows are sent too, for each table.
    """

    outcome: int = m.APPLIED
    staleness: int = 0
    detail: str = ""
    over: bool = False
    is_to_push: bool = True
    came_at: float | None = None
    moments: tuple[float, float, float, float, float] | None = None
    asked: Sequence[NDArray[Any]] = ()


@dataclass(eq=False)
class Streams:
    """Server of streams, each in a transport thread."""

    _task: TaskState
    _membership: JobMembership
    _replicas: ShardReplicas
    _traffic: Traffic
    _readers: Readers
    _non_finite_reported_at: float = field(default=-NOTICE_EVERY_S, init=False)

    def serve(self, stream: Stream, caller: Caller = ANYBODY) -> None:
        """Serves one worker, reader, or primary of another replica until it leaves."""
        member: Member | None = None
        bootstrapping = False
        try:
            opened = self._opened(stream, caller)
            if isinstance(opened, r.ReplicationHello):
                with self._task.lock:
                    replicator = self._replicas.replicator(self._replicas.get(opened.shard))
                replicator.receiver.follow(stream, opened, lambda: self._task.stopped)
                return
            if isinstance(opened, w.Follow):
                self._readers.serve(stream, opened, caller)
                return
            if opened is None:
                return
            member, replica, bootstrapping = opened
            while not self._task.stopped:
                shard = replica.shard
                stream.most_bytes = LIMITS.frame_bytes if shard is None or shard.tables else shard.layout.nbytes
                frame = stream.receive(self._task.timeouts.heartbeat_s)
                if frame is None:
                    continue
                message: m.Upward = _decoded(frame, m.Upward, member.task)
                if isinstance(message, m.Push):
                    self._push(stream, replica, member, message, frame.body)
                elif isinstance(message, m.Assign):
                    self._assign(replica, member, message, frame.body)
                    self._send_params(stream, replica, member, _Answer(is_to_push=False))
                elif isinstance(message, m.Pull):
                    asked = _asked_of(replica, member, frame.body)
                    self._send_params(stream, replica, member, _Answer(is_to_push=False, asked=asked))
                elif isinstance(message, m.Initialise):
                    self._initialise(replica, member, frame.body)
                    self._send_params(stream, replica, member, _Answer(), with_values=False)
                else:
                    raise ProtocolError(f"{member.task} opened its stream twice.")
        except (StreamClosed, DeadlineExceeded):
            pass  # the worker is gone; `stream_ended` handles that below
        except (TrainbandError, RuleError) as exc:
            self._fail(stream, exc)
        finally:
            stream.close()
            if member is not None:
                self._membership.stream_ended(stream, member, bootstrapping=bootstrapping)

    def _opened(
        self, stream: Stream, caller: Caller
    ) -> tuple[Member, ShardReplica, bool] | r.ReplicationHello | w.Follow | None:
        """Returns who opened a stream and whether for first values only; `None` if this ps ends first."""
        waiting = Waiting(self._task.timeouts.connect_s, self._task.say, self._task.clock)
        stream.most_bytes = 0  # no body yet
        while not self._task.stopped:
            frame = stream.receive(self._task.timeouts.heartbeat_s)
            if frame is not None:
                message: m.Upward | r.ReplicationHello | w.Follow = _decoded(
                    frame, m.Upward | r.ReplicationHello | w.Follow, stream.peer
                )
                if isinstance(message, w.Follow):
                    return message
                if isinstance(message, r.ReplicationHello):
                    self._replicas.require_partner(caller, message.shard, message.ps)
                    stream.most_bytes = LIMITS.frame_bytes
                    return message
                if not isinstance(message, m.Open):
                    raise ProtocolError(f"{stream.peer} did not identify itself first.")
                with self._task.lock:
                    member = self._membership.members.get(message.worker)
                    if member.incarnation != message.incarnation:
                        raise Refused(
                            f"worker number {message.worker} now belongs to another process.",
                            RefusalCode.UNKNOWN_WORKER,
                        )
                    caller.require_self(member.task, member.incarnation, "open a stream")
                    replica = self._replicas.home if message.shard < 0 else self._replicas.get(message.shard)
                    self._membership.stream_opened(stream, member, bootstrapping=message.bootstrapping)
                return member, replica, message.bootstrapping
            waiting.check(f"the first frame of {stream.peer}", "it opened a stream but is silent")
        return None

    def _fail(self, stream: Stream, exc: Exception) -> None:
        why = printable(str(exc), LIMITS.failure_length)
        if self._task.refusals.record(stream.peer, "a stream", exc):
            self._task.say(f"refused {stream.peer}: {why}")
        try:
            stream.send(encode(m.Failure(why, exc.code if isinstance(exc, Refused) else RefusalCode.OTHER)))
        except (StreamClosed, DeadlineExceeded):
            return

    def _initialise(self, replica: ShardReplica, member: Member, body: Sequence[NDArray[np.uint8]]) -> None:
        with self._task.lock:
            self._membership.require_chief(member, "initialise the variables")
            shard = replica.require_updater().shard
            if shard.initialised:
                return
            self._replicas.require_uninvited(replica)
            blocks = shard.layout.from_wire(body)
            if blocks is None:
                raise ProtocolError(f"{member.task} sent first values of the wrong size.")
            replica.initialise(blocks)
            self._replicas.replicate(replica)

    def _assign(
        self, replica: ShardReplica, member: Member, assign: m.Assign, body: Sequence[NDArray[np.uint8]]
    ) -> None:
        with self._task.lock:
            self._membership.record_contact(member)
            if member.has_left:
                raise Refused(f"{member.task} has left the job and may not assign.")
            blocks = replica.require_primary().layout.from_wire(body)
            if blocks is None:
                raise ProtocolError(f"{member.task} assigned values of the wrong size.")
            # Copies: the frame's memory is reused before the standby has them.
            replica.record(r.Assigned(assign.replaced, assign.added), tuple(np.array(block) for block in blocks))

    def _push(
        self, stream: Stream, replica: ShardReplica, member: Member, push: m.Push, body: Sequence[NDArray[np.uint8]]
    ) -> None:
        came_at = self._task.clock()
        shard = _shard_of(replica, member)
        layout = shard.layout
        body, asked = body[: arrays_of_push(shard)], _asked_of(replica, member, body[arrays_of_push(shard) :])
        gradient = _gradient_of(replica, member, shard, body)
        rows = gradient[len(layout.blocks) :]
        trained = [g for g, b in zip(gradient, layout.blocks, strict=False) if b.trained]  # without the rows
        finite = push.finite and all_finite([*trained, *rows])
        with self._task.lock:
            arrived = sum(raw.nbytes for raw in body)
            account = self._record_push(
                replica, member, push, arrived, layout.nbytes + sum(array.nbytes for array in rows)
            )
            late = 0 < push.fit < replica.training.fit  # its training is over
            if late:
                account.dropped += 1
            elif not finite:
                account.refused += 1
                detail = self._non_finite(member, push, shard, gradient, account.refused)
            else:
                account.record_loss(push.loss)
                event = PushEvent(member.number, push.sequence, push.version, push.examples, push.workload)
                taken_at = self._task.clock() if push.recorded else 0.0
                pending = replica.push(event, gradient)
        if late:
            answer = _Answer(m.DROPPED, 0, ALL_UPDATES_MADE, over=True, asked=asked)
            self._send_params(stream, replica, member, answer)
            return
        if not finite:
            self._send_params(stream, replica, member, _Answer(m.NON_FINITE, 0, detail, asked=asked))
            return
        while not pending.answered.wait(WAIT_S):
            if self._task.stopped or not stream.alive:
                raise StreamClosed(f"{member.task} has gone while its push waited for others.")
        if pending.outcome != m.APPLIED:
            account.dropped += 1
        elif not pending.detail:
            account.record_update(pending.staleness)
        moments = (came_at, taken_at, *pending.updated, self._task.clock()) if push.recorded else None
        answer = _Answer(
            pending.outcome, pending.staleness, pending.detail, came_at=came_at, moments=moments, asked=asked
        )
        self._send_params(stream, replica, member, answer)

    def _record_push(self, replica: ShardReplica, member: Member, push: m.Push, arrived: int, whole: int) -> Account:
        """Records a worker's push to a shard held here and its bytes. Called under the lock.

        Args:
          arrived, whole: bytes of the gradient as it was sent, and in its own dtypes.
        """
        self._membership.record_contact(member)
        if member.has_left:
            raise Refused(f"{member.task} has left the job and may not push.")
        replica.require_primary()
        account = self._membership.accounts[member.number]
        self._membership.members.pushed(member)
        member.reports_paused = False
        if member.paused:
            member.paused = False
            self._membership.came(member)
        account.record_push(self._task.clock(), push.examples)
        self._traffic.bytes_in += arrived
        self._traffic.bytes_saved += whole - arrived
        return account

    def _send_params(
        self, stream: Stream, replica: ShardReplica, member: Member, answer: _Answer, *, with_values: bool = True
    ) -> None:
        with self._task.lock:
            shard, updater, saver = replica.require_primary(), replica.require_updater(), replica.require_saver()
            version, position = shard.acquire(), replica.failover.position
            rows = shard.tables.look_up(tuple(answer.asked))
            narrow = replica.narrow if answer.is_to_push and with_values else None
            nbytes = shard.layout.nbytes if narrow is None else narrow.nbytes
            self._traffic.bytes_out += (nbytes + sum(array.nbytes for array in rows)) * with_values
            self._traffic.bytes_saved += shard.layout.nbytes - nbytes
            updater.remember(member.number, version)
            training = replica.training
            done = answer.over or (training.fit > 0 and version.number >= training.last_version)
            share, worker_state = updater.share(member.number), saver.wanted(member.number)
        try:
            # The standby must have these params too.
            self._replicas.settle(replica, position, lambda: not stream.alive)
            now = self._task.clock()
            held_s = 0.0 if answer.came_at is None else max(0.0, now - answer.came_at)
            moments = None if answer.moments is None else PushMoments(*answer.moments, now)
            params = m.Params(
                version.number,
                answer.outcome,
                answer.staleness,
                done,
                answer.detail,
                worker_state,
                share,
                held_s,
                moments,
                narrow is not None,
            )
            if narrow is None:
                stream.send(encode(params), (*version.arrays(), *rows) if with_values else ())
                return
            narrow_version = narrow.acquire(version)
            try:
                stream.send(encode(params), (*narrow.arrays(version, narrow_version), *rows))
            finally:
                narrow.release(narrow_version)
        finally:
            with self._task.lock:
                shard.release(version)

    def _non_finite(
        self, member: Member, push: m.Push, shard: Shard, gradient: Sequence[NDArray[Any]], count: int
    ) -> str:
        blocks = len(shard.layout.blocks)
        bad = [*not_finite(shard.layout, gradient[:blocks]), *shard.tables.not_finite(tuple(gradient[blocks:]))]
        text = (
            f"refused a gradient of {member.task} that is not finite"
            f" (push {push.sequence}, computed from version {push.version}, loss {push.loss:g}"
            + (f", in {', '.join(bad[:3])}" if bad else "")
            + f"; {count} so far)"
        )
        if self._task.clock() - self._non_finite_reported_at >= NOTICE_EVERY_S:
            self._non_finite_reported_at = self._task.clock()
            self._task.say(text)
        return text


def _shard_of(replica: ShardReplica, member: Member) -> Shard:
    """Returns the shard that a worker pushes to, if it is held here. Called without the lock."""
    replica.require_held()
    shard = replica.shard
    if shard is None or not shard.initialised:
        raise ProtocolError(f"{member.task} pushed a gradient that does not fit this shard (it has no values yet).")
    return shard


def _gradient_of(
    replica: ShardReplica, member: Member, shard: Shard, body: Sequence[NDArray[np.uint8]]
) -> Sequence[NDArray[Any]]:
    """Returns a received gradient: its blocks, and the arrays of its tables. Called without the lock."""
    description = replica.description
    push_dtype = description.push_dtype if description is not None else ""
    gradient = gradient_from_wire(shard, body, push_dtype)
    if gradient is None:
        raise ProtocolError(f"{member.task} pushed a gradient that does not fit this shard (wrong size).")
    if push_dtype:
        blocks = len(shard.layout.blocks)
        wide = widened(gradient[:blocks], [block.dtype for block in shard.layout.blocks])
        gradient = (*wide, *gradient[blocks:])
    return gradient


def _asked_of(replica: ShardReplica, member: Member, body: Sequence[NDArray[np.uint8]]) -> Sequence[NDArray[Any]]:
    """Returns the ids whose rows a worker asks for. Called without the lock."""
    shard = replica.shard
    if shard is None or not body:
        return ()
    asked = shard.tables.asked_from_wire(body)
    if asked is None:
        raise ProtocolError(f"{member.task} asked for rows of other tables than this shard has.")
    return asked


def _decoded(frame: Frame, kind: Any, sender: str) -> Any:
    """Returns the message in a frame's header."""
    if len(frame.header) > LIMITS.control_bytes:
        raise ProtocolError(f"{sender} sent a frame with a header of {len(frame.header):,} bytes.")
    return decode_any(frame.header, kind, sender)
