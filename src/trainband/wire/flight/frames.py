"""Frames as Flight messages; `wire/transport.py` defines a frame.

A frame is one or more messages of a DoExchange. The metadata of each start with `PREFIX`; in the first one, the header
and the sizes follow. Its data, a record batch with one uint8 column, are the bytes of the body from `offset` on:

    message      metadata                     data
    1            prefix | header | sizes      body[offset:...]
    2, 3, ...    prefix                       body[offset:...]

Large arrays are sent in place, small ones are gathered, and the receiver copies each range into its arena
in one copy, regardless of the number of arrays.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainband.errors import PeerError, ProtocolError, StreamClosed
from trainband.wire.arena import Arena, as_bytes
from trainband.wire.flight.outbox import Outbox, batch_of
from trainband.wire.frame import Bytes, Frame
from trainband.wire.handling import closed_here, ended, not_taken, silent, too_large, vanished
from trainband.wire.limits import LIMITS
from trainband.wire.transport import Timeouts

logger = logging.getLogger("trainband.wire")

PREFIX = struct.Struct("<BBxxIIIQQ")
"""Kind, flags, bytes of the header, arrays, messages of the frame, offset in the body, bytes received so far."""
FRAME, MORE, KEEPALIVE, END = 1, 2, 3, 4
"""Kinds of messages: the first of a frame, a further one, and two without data."""
WANT_KEEPALIVE = 1
"""Flag: the other end requests a keepalive now."""

# A keepalive must never block the ticker thread. HTTP/2 lets 64 KiB through to a peer that does not read; once the peer
# may have this much unread, nothing is added: it has enough to wake it.
_UNREAD_LIMIT = 16 << 10
_MESSAGE_COST = 64  # bytes counted for a message without its body, slightly more than the true size

ERRORS = (pa.ArrowException, OSError, EOFError)
"""Arrow's exceptions at the end of an exchange."""

_READ_AHEAD_BYTES = 1 << 20
"""Limit on frames not yet received, beyond which a waiting send reads no further ones."""

Message = tuple[Any, tuple[int, ...]]
"""A chunk, and the fields of its prefix."""


def _nbytes(message: Message) -> int:
    chunk, _ = message
    body = 0 if chunk.data is None else chunk.data.num_rows
    return int(chunk.app_metadata.size + _MESSAGE_COST + body)


@dataclass(slots=True, eq=False)
class StreamState:
    """State shared by both directions of a stream.

    Attributes:
      peer: the other end.
      timeouts: the deadlines.
      abort: ends any blocking call of the stream, at once and from any thread.
      translate: converts an Arrow or Flight error to one of trainband's.
      closed: whether this end has closed it.
      stalled: whether the other end has taken or sent nothing for too long.
      over: why nothing more can be received.
    """

    peer: str
    timeouts: Timeouts
    abort: Callable[[], None]
    translate: Callable[[Exception], PeerError]
    closed: bool = False
    stalled: bool = False
    over: PeerError | None = None

    def end(self, error: PeerError) -> PeerError:
        """Makes `receive` raise this error from now on; returns it."""
        self.over = error
        return error


class FrameReader:
    """The incoming direction. `lock` is held by the reading thread."""

    def __init__(self, reader: Any, state: StreamState) -> None:
        self._reader = reader
        self._state = state
        self._arena = Arena()
        self._raw_sizes, self._sizes = b"", ()  # type: tuple[bytes, tuple[int, ...]]
        self._pending: deque[Message] = deque()  # read, but not received
        self.lock = threading.Lock()
        self.most_bytes = LIMITS.frame_bytes
        self.received = 0
        """Bytes received, of all messages."""
        self.acknowledged = 0
        """Number of sent bytes that the other end has received, by its last report."""
        self.is_exhausted = False
        """Whether the end of the exchange has been read: writing is over too."""
        self.waiting_since: float | None = None
        self.moved_at: float | None = None
        """When the last part of the frame that is being received came; `None` while none is."""
        self.waiting_lock = threading.Lock()
        """Held while `waiting_since` is set."""

    def next(self) -> Message:
        """Returns the next message that is not the end."""
        return self._pending.popleft() if self._pending else self._read()

    def poll_end(self) -> None:
        """Reads one message, if no other thread does, while a send waits.

        gRPC keeps accepting and storing what is sent on a call that the other end has ended; only a read notices.
        Frames found in the process wait for `next`, uncopied, because the arena is still lent.
        """
        if sum(map(_nbytes, self._pending)) <= _READ_AHEAD_BYTES and self.lock.acquire(blocking=False):
            try:
                self._read_ahead()
            finally:
                self.lock.release()

    def read_to_end(self) -> None:
        """Reads all that the other end sent before it ended; the last message has the reason."""
        if self.lock.acquire(timeout=self._state.timeouts.grace_s):  # the reader is told of the end
            try:
                with contextlib.suppress(PeerError):
                    while True:
                        self._read_ahead()
            finally:
                self.lock.release()

    def _read_ahead(self) -> None:
        message = self._read()
        if message[1][0] != KEEPALIVE:
            self._pending.append(message)

    def drain(self) -> None:
        """Reads to the end of the exchange."""
        with self.lock, contextlib.suppress(StopIteration, *ERRORS):
            while True:
                self._reader.read_chunk()

    def _read(self) -> Message:
        state = self._state
        if state.over is not None:
            raise state.over
        with self.waiting_lock:
            self.waiting_since = time.monotonic()
        whole = False
        try:
            chunk = self._reader.read_chunk()
            whole = True
        except StopIteration:
            whole = self.is_exhausted = True
            raise state.end(closed_here(state.peer) if state.closed else vanished(state.peer)) from None
        except ERRORS as exc:
            whole = self.is_exhausted = True
            raise state.end(self._error(exc)) from exc
        finally:
            self.waiting_since = None
            if not whole:  # interrupted: a message may be lost
                state.end(closed_here(state.peer))
        metadata = chunk.app_metadata
        if metadata is None or metadata.size < PREFIX.size:
            raise state.end(ProtocolError(f"{state.peer} sent a message without trainband's prefix."))
        fields = PREFIX.unpack_from(metadata)
        message = chunk, fields
        self.received += _nbytes(message)
        self.acknowledged = fields[-1]
        if fields[0] == END:
            raise state.end(ended(state.peer, bytes(metadata)[PREFIX.size :].decode(errors="replace")))
        return message

    def _error(self, exc: Exception) -> PeerError:
        if self._state.stalled:
            return silent(self._state.peer, self._state.timeouts.stall_s)
        return closed_here(self._state.peer) if self._state.closed else self._state.translate(exc)

    def frame(self, chunk: Any, fields: tuple[int, ...]) -> Frame:
        """Reads the frame that starts with this message."""
        _, _, header_size, arrays, messages, offset, _ = fields
        state = self._state
        metadata = bytes(chunk.app_metadata)
        header = metadata[PREFIX.size : PREFIX.size + header_size]
        raw_sizes = metadata[PREFIX.size + header_size :]
        if len(header) != header_size or len(raw_sizes) != 8 * arrays:
            raise state.end(ProtocolError(f"{state.peer} sent a frame that contradicts itself."))
        if not arrays:
            return Frame(header)
        if raw_sizes != self._raw_sizes:
            self._raw_sizes, self._sizes = raw_sizes, struct.unpack(f"<{arrays}Q", raw_sizes)
        if sum(self._sizes) > self.most_bytes:
            raise state.end(too_large(state.peer, sum(self._sizes), self.most_bytes))
        try:
            views = self._arena.views(self._sizes)
        except (MemoryError, ValueError) as exc:
            raise state.end(
                ProtocolError(
                    f"{state.peer} sent a frame of {sum(self._sizes):,} bytes, too large for the free memory."
                )
            ) from exc
        whole = False
        try:
            self._place(chunk.data, offset)
            for _ in range(messages - 1):
                self.moved_at = time.monotonic()
                chunk, (kind, _, _, _, _, offset, _) = self.next()
                if kind != MORE:
                    raise state.end(ProtocolError(f"{state.peer} broke off a frame."))
                self._place(chunk.data, offset)
            whole = True
        finally:
            self.moved_at = None
            if not whole and state.over is None:
                state.over = closed_here(state.peer)
        return Frame(header, views)

    def _place(self, data: pa.RecordBatch | None, offset: int) -> None:
        if data is None or data.num_rows == 0:
            return
        memory, column, size = self._arena.memory, data.column(0), data.num_rows
        if column.type != pa.uint8() or column.null_count or offset + size > memory.size:
            raise self._state.end(ProtocolError(f"{self._state.peer} sent a body that does not match its frame."))
        memory[offset : offset + size] = np.frombuffer(column.buffers()[1], np.uint8, size, column.offset)


class FrameWriter:
    """The outgoing direction. Each message also reports how much `reader` has received."""

    def __init__(self, writer: Any, reader: FrameReader, state: StreamState) -> None:
        self._writer = writer
        self._reader = reader
        self._state = state
        self._outbox = Outbox()
        self._lock = threading.Lock()
        self._sent = 0
        self.last_sent = time.monotonic()
        self.waiting_since: float | None = None
        self.broken = False
        """Whether sending a keepalive has failed."""

    @property
    def unread(self) -> int:
        """Number of bytes that the other end may not have received yet."""
        return self._sent - self._reader.acknowledged

    def send(self, header: bytes, body: Sequence[NDArray[np.generic]]) -> None:
        state = self._state
        arrays = [as_bytes(array) for array in body]
        with self._lock:
            if state.closed:
                raise closed_here(state.peer)
            if state.over is not None:
                raise state.over
            self.waiting_since = time.monotonic()
            done = False
            try:
                self._send_frame(header, arrays, tuple(array.size for array in arrays))
                done = True
            except PeerError:  # from `poll_end`; some of these are OSErrors too
                raise
            except ERRORS as exc:
                raise self._error(exc) from exc
            finally:
                self.waiting_since = None
                if not done and state.over is None:  # half a frame is out: nothing after it could be read
                    state.closed = True
                    state.abort()

    def _send_frame(self, header: bytes, body: list[Bytes], sizes: tuple[int, ...]) -> None:
        pieces = self._outbox.pieces(sizes)
        tail = header + struct.pack(f"<{len(sizes)}Q", *sizes) if sizes else header
        if not pieces:
            self._write(FRAME, 0, None, tail, len(header), len(sizes))
            return
        # The caller may overwrite its arrays as soon as this returns, but gRPC may return while it still
        # holds the last of them. Each wrapper below is destroyed when gRPC releases it. Unlike a lock, the
        # queue can be filled from a destructor that runs anywhere.
        released: queue.SimpleQueue[object] = queue.SimpleQueue()
        wrappers: dict[int, pa.Buffer] = {}
        watchers: list[weakref.ref[Bytes]] = []
        for number, piece in enumerate(pieces):
            if piece.sizes:
                buffer = self._outbox.gather(piece, body)
            else:
                if piece.first not in wrappers:
                    wrapper = body[piece.first].view()
                    watchers.append(weakref.ref(wrapper, released.put))
                    wrappers[piece.first] = pa.py_buffer(wrapper)
                    del wrapper
                buffer = wrappers[piece.first].slice(piece.start, piece.stop - piece.start)
            if number == 0:
                self._write(FRAME, piece.offset, buffer, tail, len(header), len(sizes), len(pieces))
            else:
                self._write(MORE, piece.offset, buffer)
            self.waiting_since = time.monotonic()
        buffer = None
        wrappers.clear()
        self._await_release(released, len(watchers))

    def _await_release(self, released: queue.SimpleQueue[object], count: int) -> None:
        """Waits until gRPC has released this many arrays."""
        deadline = time.monotonic() + self._state.timeouts.stall_s
        while count:
            try:
                released.get(timeout=self._state.timeouts.heartbeat_s)
                count -= 1
                self.waiting_since = time.monotonic()
                deadline = self.waiting_since + self._state.timeouts.stall_s
            except queue.Empty:
                if time.monotonic() >= deadline:
                    self._state.stalled = True
                    raise pa.ArrowException("not taken") from None
                self._reader.poll_end()

    def _write(
        self,
        kind: int,
        offset: int,
        buffer: pa.Buffer | None,
        tail: bytes = b"",
        header_size: int = 0,
        arrays: int = 0,
        messages: int = 1,
        flags: int = 0,
    ) -> None:
        metadata = PREFIX.pack(kind, flags, header_size, arrays, messages, offset, self._reader.received) + tail
        if buffer is None:
            self._writer.write_metadata(pa.py_buffer(metadata))
            self._sent += len(metadata) + _MESSAGE_COST
        else:
            self._writer.write_with_metadata(batch_of(buffer), pa.py_buffer(metadata))
            self._sent += len(metadata) + _MESSAGE_COST + buffer.size
        self.last_sent = time.monotonic()

    def _error(self, exc: Exception) -> PeerError:
        state = self._state
        if state.stalled:
            return not_taken(state.peer, state.timeouts.stall_s)
        self._reader.read_to_end()
        error = state.over or state.translate(exc)
        return error if isinstance(error, StreamClosed) else StreamClosed(f"{state.peer} has gone: {error}")

    def send_keepalive(self, flags: int = 0) -> None:
        """Sends a keepalive unless it would block."""
        # An end that does not read for long, such as a ps whose rule waits for others, gets few: do not stall here.
        is_late = time.monotonic() - self.last_sent > self._state.timeouts.stall_s / 4
        if self._state.closed or (self.unread > _UNREAD_LIMIT and not is_late):
            return
        if self._lock.acquire(blocking=False):
            try:
                if not (self._state.closed or self._reader.is_exhausted):
                    self._write(KEEPALIVE, 0, None, flags=flags)
            except ERRORS as exc:
                # The stream is over. The next thread to use it raises the error; this one cannot report it.
                self.broken = True
                logger.debug("no keepalive to %s: %s", self._state.peer, exc)
            finally:
                self._lock.release()

    def end(self, reason: str) -> None:
        """Sends the end message with `reason` on the first call. Nothing can be sent afterwards."""
        state = self._state
        # Waits for a frame on its way: this end's other thread may be sending it.
        if not self._lock.acquire(timeout=state.timeouts.grace_s):
            state.closed = True
            state.abort()
            return
        try:
            is_open, state.closed = not state.closed, True
            if is_open and not self._reader.is_exhausted:
                # Truncated, like all of gRPC's own messages, to fit into an empty window.
                tail = reason.encode()[:8192]
                self.waiting_since = time.monotonic()
                with contextlib.suppress(*ERRORS):
                    self._write(END, 0, None, tail, len(tail))
        finally:
            self.waiting_since = None
            self._lock.release()

    def close(self) -> None:
        """Ends the writing half of the exchange."""
        with contextlib.suppress(*ERRORS):
            self._writer.close()
