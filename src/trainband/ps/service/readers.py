"""Readers: clients that follow a shard's values without joining the job."""

from __future__ import annotations

import msgspec

from trainband.cluster.identity import Role
from trainband.errors import PeerError, RefusalCode, Refused, StreamClosed
from trainband.ps.changes import Changed, changes, everything, is_worth_comparing
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.shard.shard import ParamsVersion, Shard
from trainband.ps.task_state import TaskState
from trainband.runtime.formatting import printable
from trainband.wire.limits import LIMITS
from trainband.wire.messages import following as w
from trainband.wire.messages.calls import Failure
from trainband.wire.messages.codec import decode_any, encode
from trainband.wire.transport import Caller, Stream

LOOK_S = 0.2
"""Seconds between a reader thread's checks of whether this ps is ending."""

SETTLE_S = 1.0
"""Seconds that a reader waits for the standby to have the values."""

_OBSERVERS = frozenset({Role.OBSERVER})


class Readers:
    """Server of readers, each in a transport thread. Training never waits for one.

    It sends values from immutable versions, and only those that the standby has too.
    """

    def __init__(self, task: TaskState, replicas: ShardReplicas) -> None:
        self._task = task
        self._replicas = replicas
        self._count = 0

    def serve(self, stream: Stream, follow: w.Follow, caller: Caller) -> None:
        """Serves one reader until it leaves.

        Raises:
          Refused: it may not read, the shard is elsewhere or has no values, or too many read.
          ProtocolError: it sent an invalid message.
          StreamClosed, DeadlineExceeded: it has gone.
        """
        caller.require(_OBSERVERS, "read the values of a shard")
        with self._task.lock:
            if self._count >= LIMITS.readers:
                raise Refused(f"{self._task.name} has {self._count} readers, the maximum.", RefusalCode.BUSY)
            replica = self._replicas.get(follow.shard)
            self._count += 1
        reader = _Reader(self._task, self._replicas, replica, stream)
        try:
            while not self._ends():
                frame = stream.receive(LOOK_S)
                if frame is not None:
                    if len(frame.header) > LIMITS.control_bytes:
                        raise Refused(f"{stream.peer} sent a header of {len(frame.header):,} bytes.")
                    asked = decode_any(frame.header, w.Look | w.Read, stream.peer)
                    try:
                        reader.answer(asked)
                    except StreamClosed:
                        if not (self._ends() and stream.alive):
                            raise  # else this ps is ending
                    except Refused as exc:
                        if not exc.is_for_another:
                            raise
                        stream.send(encode(Failure(str(exc), exc.code)))  # not an error: it asks another ps
            reader.end()
        finally:
            reader.forget()
            with self._task.lock:
                self._count -= 1

    def _ends(self) -> bool:
        return self._task.stopped

    def await_all_notified(self, grace_s: float) -> None:
        """Waits up to `grace_s` until all readers know that this ps is ending. Called without the lock."""
        deadline = self._task.clock() + grace_s
        while self._count and self._task.clock() < deadline:
            self._task.runtime.sleep(LOOK_S / 4)


class _Reader:
    """One reader and what it has."""

    def __init__(self, task: TaskState, replicas: ShardReplicas, replica: ShardReplica, stream: Stream) -> None:
        self._task = task
        self._replicas = replicas
        self._replica = replica
        self._stream = stream
        self._sent = 0
        """The serial number of the last version sent."""
        self._kept: tuple[Shard, ParamsVersion] | None = None
        """That version, if the next is compared with it."""
        self._compares = True

    def answer(self, asked: w.Look | w.Read) -> None:
        """Answers one question."""
        if isinstance(asked, w.Read):
            self._send(*self._acquired(asked))
            return
        with self._task.lock:
            version = self._shard().newest
            values = self._values(version.number, is_new=version.serial != self._sent)
        self._stream.send(encode(values))

    def end(self) -> None:
        """Tells the reader that this ps is ending, with the last values."""
        try:
            with self._task.lock:
                shard, position = self._shard(), self._replica.failover.position
                version = shard.acquire()
        except Refused as exc:  # another ps holds the shard, or none ever has
            self._stream.send(encode(w.Values(0, "", 0, "", 0, is_new=False, over=True, why=str(exc))))
            return
        try:
            if not self._replica.complete:  # else the workers and the standby already know
                self._replicas.settle(self._replica, position, lambda: True)
        except PeerError:  # the standby may never get these; the shard continues from what it has
            with self._task.lock:
                shard.recycle(version)
                values = self._values(version.number, is_new=False, over=True)
            self._stream.send(encode(values))
            return
        self._send(shard, version, over=True)

    def forget(self) -> None:
        """Releases the last version sent."""
        with self._task.lock:
            self._release()

    def _shard(self) -> Shard:
        """Returns the shard if held here. Called under the lock.

        Raises:
          Refused: it is on another ps or has no values yet.
        """
        shard = self._replica.require_primary()
        if not shard.initialised:
            raise Refused(f"{self._task.name} has no values of {self._replica.name} yet.", RefusalCode.NOT_READY)
        return shard

    def _acquired(self, asked: w.Read) -> tuple[Shard, ParamsVersion, float]:
        """Acquires the requested version if it comes in time, else the newest; also returns the seconds waited."""
        with self._task.lock:
            shard = self._shard()
            if asked.at <= shard.version or not asked.wait_s > 0:
                return shard, shard.acquire(), 0.0
            wanted = shard.want(asked.at, self._task.runtime.event())
        began = self._task.clock()
        deadline = began + min(asked.wait_s, w.MOST_WAIT_S)
        while not (wanted.reached.is_set() or self._task.stopped) and self._stream.alive:
            left_s = deadline - self._task.clock()
            if left_s <= 0:
                break
            wanted.reached.wait(min(left_s, LOOK_S))
        with self._task.lock:
            version = shard.acquire_wanted(wanted)
            try:
                if self._shard() is not shard:
                    raise Refused(f"{self._replica.name} was replaced.", RefusalCode.MOVED)
            except Refused:
                if version is not None:
                    shard.recycle(version)
                raise
            return shard, version or shard.acquire(), self._task.clock() - began

    def _send(self, shard: Shard, version: ParamsVersion, waited_s: float = 0.0, *, over: bool = False) -> None:
        is_new, is_kept = version.serial != self._sent, False
        try:
            with self._task.lock:
                values = self._values(version.number, is_new=is_new, over=over)
                position = self._replica.failover.position
            if not over:
                self._settle(position)
            counts, body = self._changes(shard, version) if is_new else ((), [])
            self._stream.send(encode(msgspec.structs.replace(values, changed=counts, waited_s=waited_s)), body)
            if is_new:
                self._sent = version.serial
                is_kept = self._compares and is_worth_comparing(shard.layout)
                with self._task.lock:
                    self._release()
                    self._kept = (shard, version) if is_kept else None
        finally:
            if not is_kept:
                with self._task.lock:
                    shard.recycle(version)

    def _settle(self, position: int) -> None:
        """Waits until the standby, if any, has everything up to a record.

        Raises:
          Refused: it was too slow; another ps may soon hold the shard.
          StreamClosed: this ps or the reader is ending.
        """
        deadline = self._task.clock() + SETTLE_S
        try:
            self._replicas.settle(
                self._replica, position, lambda: not self._stream.alive or self._task.clock() >= deadline
            )
        except StreamClosed as exc:
            if self._task.stopped or not self._stream.alive:
                raise
            raise Refused(
                f"the standby of {self._replica.name} does not have the values of {self._task.name} yet.",
                RefusalCode.MOVED,
            ) from exc

    def _changes(self, shard: Shard, version: ParamsVersion) -> Changed:
        if self._kept is None or self._kept[0] is not shard:
            return everything(version.arrays())
        found = changes(shard.layout, self._kept[1].arrays(), version.arrays())
        # If every step changes everything, keeping a version to compare with gains nothing.
        self._compares = any(count != w.WHOLE for count in found[0])
        return found

    def _release(self) -> None:
        """Called under the lock."""
        if self._kept is not None:
            shard, version = self._kept
            shard.recycle(version)
        self._kept = None

    def _values(self, version: int, *, is_new: bool, over: bool = False) -> w.Values:
        """Called under the lock."""
        failover, training = self._replica.failover, self._replica.training
        return w.Values(
            version,
            failover.lineage,
            failover.term.number,
            self._replica.job,
            training.last_version if training.fit else 0,
            is_new,
            over=over,
            why=printable(self._task.ended, LIMITS.failure_length) if over else "",
        )
