"""Streams over the two halves of an Arrow Flight DoExchange.

A thread that is blocked in a Flight read or write sees neither signals nor deadlines, and handing over frames from a
reader thread would cost every frame a thread switch. So the consumer of a frame reads it, and the
`Ticker` thread of each end sends a keepalive when there is nothing else to send: it wakes the reader at the other end,
which then checks its deadline, its signals and whether its listener is stopping.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DeadlineExceeded, PeerError, ProtocolError, StreamClosed
from trainband.wire.flight.frames import FRAME, KEEPALIVE, WANT_KEEPALIVE, FrameReader, FrameWriter, StreamState
from trainband.wire.frame import Frame
from trainband.wire.handling import closed_here, stopping
from trainband.wire.transport import Timeouts


class ExchangeStream:
    """One end of a DoExchange as a `Stream`.

    `receive(timeout_s)` wakes for every keepalive of the other end, so its timeout is accurate to
    `Timeouts.heartbeat_s`. If the other end is silent, because it is stopped or cut off, it raises `DeadlineExceeded`
    after `Timeouts.stall_s` and the stream is dead.

    Args:
      reader, writer: the halves of the exchange; the writer has begun.
      peer: the other end.
      abort: ends any blocking call of this stream, at once and from any thread.
      translate: converts an Arrow or Flight error to one of trainband's.
      is_stopping: whether the listener of this end is stopping, `None` at the client's end.
      opened: called on the first frame, until which `abort_at` applies.
    """

    def __init__(
        self,
        reader: Any,
        writer: Any,
        *,
        peer: str,
        timeouts: Timeouts,
        abort: Callable[[], None],
        translate: Callable[[Exception], PeerError],
        is_stopping: Callable[[], bool] | None = None,
        opened: Callable[[], None] | None = None,
    ) -> None:
        self._state = StreamState(peer, timeouts, abort, translate)
        self._reader = FrameReader(reader, self._state)
        self._writer = FrameWriter(writer, self._reader, self._state)
        self._timeouts = timeouts
        self._is_stopping = is_stopping
        self._opened = opened
        self.abort_at: float | None = None
        """When the ticker should abort a blocked stream, on the clock of `time.monotonic`."""

    @property
    def peer(self) -> str:
        return self._state.peer

    @property
    def transport(self) -> str:
        return "flight"

    @property
    def most_bytes(self) -> int:
        return self._reader.most_bytes

    @most_bytes.setter
    def most_bytes(self, most: int) -> None:
        self._reader.most_bytes = most

    @property
    def alive(self) -> bool:
        return not (self._state.closed or self._state.stalled or self._writer.broken) and self._state.over is None

    @property
    def outlives_sender(self) -> bool:
        return False  # data on the network is lost with it

    @property
    def silent_s(self) -> float:
        since = self._reader.waiting_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def moved_s(self) -> float:
        moved = [at for at in (self._reader.moved_at, self._writer.waiting_since) if at is not None]
        return time.monotonic() - max(moved) if moved else math.inf

    def send(self, header: bytes, body: Sequence[NDArray[np.generic]] = ()) -> None:
        self._writer.send(header, body)

    def receive(self, timeout_s: float) -> Frame | None:
        deadline = time.monotonic() + timeout_s
        with self._reader.lock:
            while True:
                if self._state.closed:
                    raise closed_here(self.peer)
                chunk, fields = self._reader.next()
                if fields[0] == FRAME:
                    if self._opened is not None:
                        self.abort_at = None
                        self._opened()
                        self._opened = None
                    return self._reader.frame(chunk, fields)
                if fields[0] != KEEPALIVE:
                    raise self._state.end(ProtocolError(f"{self.peer} sent a message of the unknown kind {fields[0]}."))
                if fields[1] & WANT_KEEPALIVE or self._is_due(time.monotonic()):
                    self._writer.send_keepalive()
                if self._is_stopping is not None and self._is_stopping():
                    raise stopping("this task's listener")
                if time.monotonic() >= deadline:
                    return None

    def greet(self) -> None:
        """Tells the client that its stream has reached a handler."""
        self._writer.send_keepalive()

    def await_greeting(self, timeout_s: float) -> None:
        """Waits until the stream has reached the other end's handler."""
        self.abort_at = time.monotonic() + timeout_s
        try:
            with self._reader.lock:
                self._reader.next()
        except StreamClosed as exc:
            if time.monotonic() >= self.abort_at:
                raise DeadlineExceeded(f"{self.peer} did not open a stream in {timeout_s} s.") from exc
            raise
        finally:
            self.abort_at = None

    def wake(self) -> None:
        """Requests a keepalive from the other end, which wakes the thread that waits in `receive` here."""
        self._writer.send_keepalive(WANT_KEEPALIVE)

    def tick(self, now: float) -> None:
        """Sends a keepalive when one is due, and ends what has stalled."""
        for since in (self._reader.waiting_since, self._writer.waiting_since):
            if since is not None and now - since > self._timeouts.stall_s:
                self._state.stalled = True
                self._state.abort()
                return
        if self.abort_at is not None and now >= self.abort_at:
            self._state.abort()
        elif self._is_due(now):
            self._keep_alive()

    def _is_due(self, now: float) -> bool:
        return now - self._writer.last_sent >= self._timeouts.heartbeat_s / 2

    def _keep_alive(self) -> None:
        self._writer.send_keepalive()

    def refuse_more(self) -> None:
        self.interrupt()

    def interrupt(self) -> None:
        self._state.closed = True
        self._state.abort()

    def end(self, reason: str) -> None:
        self._writer.end(reason)

    def close(self) -> None:
        self.end("")


class ClientStream(ExchangeStream):
    """The client's end, whose `close` also ends the exchange."""

    def __init__(
        self,
        reader: Any,
        writer: Any,
        *,
        peer: str,
        timeouts: Timeouts,
        abort: Callable[[], None],
        translate: Callable[[Exception], PeerError],
        forget: Callable[[ClientStream], None],
    ) -> None:
        super().__init__(reader, writer, peer=peer, timeouts=timeouts, abort=abort, translate=translate)
        self._forget = forget
        self._close_lock = threading.Lock()
        self._finished = False

    def close(self) -> None:
        with self._close_lock:
            if not self._finished:
                self._finished = True
                self._finish()

    def _keep_alive(self) -> None:
        # At the client's end, Arrow half-closes the exchange when a read finds it over, and gRPC aborts
        # the process if that meets a write. So while a thread reads here the ticker stays silent; the reader
        # itself sends our keepalives, each time one of the listener's wakes it.
        with self._reader.waiting_lock:
            if self._reader.waiting_since is None:
                self._writer.send_keepalive()

    def _finish(self) -> None:
        self.abort_at = time.monotonic() + self._timeouts.grace_s
        self._writer.end("")
        # gRPC prints on stderr when an exchange is dropped before its status arrives: read up to it. The handler
        # at the other end returns when it has read our end message, or the ticker ends this at `abort_at`. No
        # half-close by `done_writing`: the read does that, see `_keep_alive`.
        self._reader.drain()
        self._writer.close()
        self._forget(self)
