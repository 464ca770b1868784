"""Frames over the two halves of an Arrow Flight DoExchange.

A frame is one or more Flight messages. Their metadata start with `_PREFIX`; the first one also holds the
header and the size of each array, and all of them hold a range of the body, laid out as `arena.layout` says,
as a record batch with one uint8 column. Large arrays are sent from where they lie, small ones are gathered,
and the receiver copies each range into its arena with one copy, whatever the number of arrays.

A thread that is blocked in a Flight read or write sees neither signals nor deadlines, and handing frames over
from a reader thread would cost every frame a switch of threads. So a frame is read by the thread that wants
it, and the `Pulse` thread of each end sends a sign of life when there is nothing else to send: it wakes the
reader at the other end, which then looks at its deadline, its signals and whether its listener is stopping.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DeadlineExceeded, PeerError, ProtocolError, StreamClosed
from .arena import Arena, as_bytes
from .limits import LIMITS
from .outbox import Outbox, batch_of
from .serving import closed_here, ended, stopping, too_large, vanished
from .transport import Bytes, Frame, Timeouts

logger = logging.getLogger("trainband.wire")

# kind, flags, bytes of header, arrays, messages of this frame, offset in the body, bytes received so far
_PREFIX = struct.Struct("<BBxxIIIQQ")
_FRAME, _MORE, _ALIVE, _END = 1, 2, 3, 4
_ANSWER = 1  # flag: the other end wants a sign of life now

# A sign of life must never block the pulse thread. HTTP/2 lets 64 KiB through to a peer that does not read;
# nothing is added once the peer may have this much unread, as it then has something to wake it anyhow.
_UNREAD_LIMIT = 16 << 10
_MESSAGE_COST = 64  # bytes that a message counts for besides its body, a little more than it has


class ExchangeStream:
    """One end of a DoExchange as a `Stream`.

    `receive(timeout_s)` wakes for every sign of life of the other end, so that its timeout is observed to
    within `Timeouts.heartbeat_s`. When the other end is silent, that is stopped or cut off, it raises
    `DeadlineExceeded` after `Timeouts.stall_s` and the stream is dead.

    Args:
      reader, writer: the halves of the exchange; the writer has begun.
      peer: who is at the other end.
      abort: ends, from any thread and at once, whatever this stream is blocked in.
      translate: makes an error of ours of an Arrow or Flight error.
      is_stopping: whether the listener of this end stops, `None` at the client's end.
      opened: called when the first frame has come, until which `abort_at` counts.
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
        self._reader, self._writer = reader, writer
        self._peer = peer
        self._timeouts = timeouts
        self._abort = abort
        self._translate = translate
        self._is_stopping = is_stopping
        self._opened = opened
        self._arena = Arena()
        self._outbox = Outbox()
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()
        self._pulse_lock = threading.Lock()
        self._closed = False
        self._over: PeerError | None = None  # why nothing more can be received
        self._pending: tuple[Any, tuple[int, ...]] | None = None  # read, but not received
        self._is_exhausted = False  # the reader has met the end of the exchange: writing is over too
        self._raw_sizes, self._sizes = b"", ()  # type: tuple[bytes, tuple[int, ...]]
        self._sent = self._received = self._acknowledged = 0
        self._last_sent = time.monotonic()
        self._reading_since: float | None = None
        self._writing_since: float | None = None
        self._stalled = False
        self._broken = False  # a sign of life could not be sent
        self.most_bytes = LIMITS.frame_bytes
        self.abort_at: float | None = None
        """When the pulse shall end whatever the stream is blocked in, on the clock of `time.monotonic`."""

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def transport(self) -> str:
        return "flight"

    @property
    def alive(self) -> bool:
        return not (self._closed or self._stalled or self._broken) and self._over is None

    @property
    def silent_s(self) -> float:
        since = self._reading_since
        return 0.0 if since is None else time.monotonic() - since

    def send(self, header: bytes, body: Sequence[NDArray[np.generic]] = ()) -> None:
        arrays = [as_bytes(array) for array in body]
        sizes = tuple(array.size for array in arrays)
        with self._send_lock:
            if self._closed:
                raise closed_here(self._peer)
            if self._over is not None:
                raise self._over
            self._writing_since = time.monotonic()
            done = False
            try:
                self._send_frame(header, arrays, sizes)
                done = True
            except PeerError:  # from `_look_for_end`; some of them are OSErrors too
                raise
            except (pa.ArrowException, OSError, EOFError) as exc:
                raise self._send_error(exc) from exc
            finally:
                self._writing_since = None
                if not done:  # half a frame is out: nothing that follows could be read
                    self._closed = True
                    self._abort()

    def _send_frame(self, header: bytes, body: list[Bytes], sizes: tuple[int, ...]) -> None:
        pieces = self._outbox.pieces(sizes)
        tail = header + struct.pack(f"<{len(sizes)}Q", *sizes) if sizes else header
        if not pieces:
            self._write(_FRAME, 0, None, tail, len(header), len(sizes), 1)
            return
        # The caller may overwrite its arrays as soon as this returns, but gRPC may return while it still
        # holds the last of them. Each wrapper below dies when gRPC lets go. The queue, unlike a lock, can
        # be filled from a destructor wherever that happens to run.
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
                self._write(_FRAME, piece.offset, buffer, tail, len(header), len(sizes), len(pieces))
            else:
                self._write(_MORE, piece.offset, buffer)
            self._writing_since = time.monotonic()
        buffer = None
        wrappers.clear()
        deadline = time.monotonic() + self._timeouts.stall_s
        for _ in watchers:
            while not self._is_released(released):
                if time.monotonic() >= deadline:
                    self._stalled = True
                    raise pa.ArrowException("not taken")
                self._look_for_end()

    def _look_for_end(self) -> None:
        """Reads one message, if nobody else does, while a send waits.

        gRPC goes on taking what is sent on a call that the other end has ended, and keeps it; only a read finds
        out. A frame that is found instead waits for the next `receive`, not copied, as the arena is still lent.
        """
        if self._pending is None and self._receive_lock.acquire(blocking=False):
            try:
                message = self._read()
                if message[1][0] == _ALIVE:
                    self._acknowledged = message[1][-1]
                else:
                    self._pending = message
            finally:
                self._receive_lock.release()

    def _is_released(self, released: queue.SimpleQueue[object]) -> bool:
        try:
            released.get(timeout=self._timeouts.heartbeat_s)
        except queue.Empty:
            return False
        return True

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
        metadata = _PREFIX.pack(kind, flags, header_size, arrays, messages, offset, self._received) + tail
        if buffer is None:
            self._writer.write_metadata(pa.py_buffer(metadata))
            self._sent += len(metadata) + _MESSAGE_COST
        else:
            self._writer.write_with_metadata(batch_of(buffer), pa.py_buffer(metadata))
            self._sent += len(metadata) + _MESSAGE_COST + buffer.size
        self._last_sent = time.monotonic()

    def _send_error(self, exc: Exception) -> PeerError:
        if self._stalled:
            return DeadlineExceeded(
                f"{self._peer} has taken nothing from its stream for {self._timeouts.stall_s} s; check that it is "
                "not stopped, or raise Timeouts.stall_s."
            )
        if isinstance(self._over, StreamClosed):
            return self._over
        error = self._translate(exc)
        return error if isinstance(error, StreamClosed) else StreamClosed(f"{self._peer} has gone: {error}")

    def receive(self, timeout_s: float) -> Frame | None:
        deadline = time.monotonic() + timeout_s
        with self._receive_lock:
            while True:
                if self._closed:
                    raise closed_here(self._peer)
                chunk, fields = self._pending or self._read()
                self._pending = None
                kind, flags, _, _, _, _, self._acknowledged = fields
                if kind == _FRAME:
                    if self._opened is not None:
                        self.abort_at = None
                        self._opened()
                        self._opened = None
                    return self._read_frame(chunk, fields)
                if kind != _ALIVE:
                    raise self._end(ProtocolError(f"{self._peer} sent a message of the unknown kind {kind}."))
                if flags & _ANSWER or self._is_due(time.monotonic()):
                    self._send_alive()
                if self._is_stopping is not None and self._is_stopping():
                    raise stopping("this task's listener")
                if time.monotonic() >= deadline:
                    return None

    def _end(self, error: PeerError) -> PeerError:
        self._over = error
        return error

    def _read(self) -> tuple[Any, tuple[int, ...]]:
        """The next message: its chunk and its prefix."""
        if self._over is not None:
            raise self._over
        with self._pulse_lock:
            self._reading_since = time.monotonic()
        whole = False
        try:
            chunk = self._reader.read_chunk()
            whole = True
        except StopIteration:
            whole = self._is_exhausted = True
            raise self._end(closed_here(self._peer) if self._closed else vanished(self._peer)) from None
        except (pa.ArrowException, OSError, EOFError) as exc:
            whole = self._is_exhausted = True
            raise self._end(self._receive_error(exc)) from exc
        finally:
            self._reading_since = None
            if not whole:  # interrupted: a message may be lost
                self._end(closed_here(self._peer))
        metadata = chunk.app_metadata
        if metadata is None or metadata.size < _PREFIX.size:
            raise self._end(ProtocolError(f"{self._peer} sent a message without trainband's prefix."))
        fields = _PREFIX.unpack_from(metadata)
        self._received += metadata.size + _MESSAGE_COST + (0 if chunk.data is None else chunk.data.num_rows)
        if fields[0] == _END:
            raise self._end(ended(self._peer, bytes(metadata)[_PREFIX.size :].decode(errors="replace")))
        return chunk, fields

    def _receive_error(self, exc: Exception) -> PeerError:
        if self._stalled:
            return DeadlineExceeded(
                f"{self._peer} gave no sign of life for {self._timeouts.stall_s} s; check that it is not stopped "
                "and that the network is up, or raise Timeouts.stall_s."
            )
        if self._closed:
            return closed_here(self._peer)
        return self._translate(exc)

    def _read_frame(self, chunk: Any, fields: tuple[int, ...]) -> Frame:
        _, _, header_size, arrays, messages, offset, _ = fields
        metadata = bytes(chunk.app_metadata)
        header = metadata[_PREFIX.size : _PREFIX.size + header_size]
        raw_sizes = metadata[_PREFIX.size + header_size :]
        if len(header) != header_size or len(raw_sizes) != 8 * arrays:
            raise self._end(ProtocolError(f"{self._peer} sent a frame that contradicts itself."))
        if not arrays:
            return Frame(header)
        if raw_sizes != self._raw_sizes:
            self._raw_sizes, self._sizes = raw_sizes, struct.unpack(f"<{arrays}Q", raw_sizes)
        if sum(self._sizes) > self.most_bytes:
            raise self._end(too_large(self._peer, sum(self._sizes), self.most_bytes))
        try:
            views = self._arena.views(self._sizes)
        except (MemoryError, ValueError) as exc:
            raise self._end(
                ProtocolError(f"{self._peer} sent a frame of {sum(self._sizes)} bytes, for which there is no memory.")
            ) from exc
        memory = self._arena.memory
        whole = False
        try:
            self._place(memory, chunk.data, offset)
            for _ in range(messages - 1):
                chunk, (kind, _, _, _, _, offset, self._acknowledged) = self._read()
                if kind != _MORE:
                    raise self._end(ProtocolError(f"{self._peer} broke off a frame."))
                self._place(memory, chunk.data, offset)
            whole = True
        finally:
            if not whole and self._over is None:
                self._over = closed_here(self._peer)
        return Frame(header, views)

    def _place(self, memory: Bytes, data: pa.RecordBatch | None, offset: int) -> None:
        if data is None or data.num_rows == 0:
            return
        column = data.column(0)
        size = data.num_rows
        if column.type != pa.uint8() or column.null_count or offset + size > memory.size:
            raise self._end(ProtocolError(f"{self._peer} sent a body that is not as its frame said."))
        part = np.frombuffer(column.buffers()[1], np.uint8, size, column.offset)
        memory[offset : offset + size] = part

    def _send_alive(self, flags: int = 0) -> None:
        """Sends a sign of life if that needs no waiting."""
        # To an end that does not read for long, as a ps whose rule waits for others, few go: it must not stall here.
        is_late = time.monotonic() - self._last_sent > self._timeouts.stall_s / 4
        if self._closed or (self._sent - self._acknowledged > _UNREAD_LIMIT and not is_late):
            return
        if self._send_lock.acquire(blocking=False):
            try:
                if not (self._closed or self._is_exhausted):
                    self._write(_ALIVE, 0, None, flags=flags)
            except (pa.ArrowException, OSError, EOFError) as exc:
                # The stream is over. Whoever uses it next is told; the pulse has nobody to tell.
                self._broken = True
                logger.debug("no sign of life to %s: %s", self._peer, exc)
            finally:
                self._send_lock.release()

    def greet(self) -> None:
        """Tells the client that its stream has reached a handler."""
        self._send_alive()

    def await_greeting(self, timeout_s: float) -> None:
        """Waits until the stream has reached the other end's handler."""
        self.abort_at = time.monotonic() + timeout_s
        try:
            with self._receive_lock:
                self._read()
        except StreamClosed as exc:
            if time.monotonic() >= self.abort_at:
                raise DeadlineExceeded(f"{self._peer} did not open a stream in {timeout_s} s.") from exc
            raise
        finally:
            self.abort_at = None

    def wake(self) -> None:
        """Asks the other end for a sign of life, which wakes the thread that waits in `receive` here."""
        self._send_alive(_ANSWER)

    def tick(self, now: float) -> None:
        """The pulse: a sign of life when one is due, an end to what has stalled."""
        stall_s = self._timeouts.stall_s
        for since in (self._reading_since, self._writing_since):
            if since is not None and now - since > stall_s:
                self._stalled = True
                self._abort()
                return
        if self.abort_at is not None and now >= self.abort_at:
            self._abort()
        elif self._is_due(now):
            self._beat()

    def _is_due(self, now: float) -> bool:
        return now - self._last_sent >= self._timeouts.heartbeat_s / 2

    def _beat(self) -> None:
        self._send_alive()

    @property
    def keeps(self) -> bool:
        return False  # what is on the network goes with it

    def refuse_more(self) -> None:
        self.interrupt()

    def interrupt(self) -> None:
        self._closed = True
        self._abort()

    def end_stream(self, reason: str = "") -> bool:
        """Sends the end frame with `reason`; the first call only. Nothing can be sent afterwards."""
        # Waits for a frame on its way: this end's other thread may be sending it.
        if not self._send_lock.acquire(timeout=self._timeouts.grace_s):
            first, self._closed = not self._closed, True
            self._abort()
            return first
        try:
            if self._closed:
                return False
            self._closed = True
            with contextlib.suppress(pa.ArrowException, OSError, EOFError):
                if not self._is_exhausted:
                    # Truncated, as all of gRPC's own messages are, so that it fits into an empty window.
                    tail = reason.encode()[:8192]
                    self._writing_since = time.monotonic()
                    self._write(_END, 0, None, tail, len(tail))
            return True
        finally:
            self._writing_since = None
            self._send_lock.release()

    def close(self) -> None:
        self.end_stream()


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

    def _beat(self) -> None:
        # At the client's end, Arrow half-closes the exchange by itself when a read finds it over, and gRPC aborts
        # the process when that meets a write. So while somebody reads here the pulse stays silent; the reader
        # sends our signs of life itself, whenever one of the listener's wakes it.
        with self._pulse_lock:
            if self._reading_since is None:
                self._send_alive()

    def _finish(self) -> None:
        self.abort_at = time.monotonic() + self._timeouts.grace_s
        self.end_stream()
        errors = (pa.ArrowException, OSError, EOFError)
        # gRPC prints on stderr when an exchange is dropped before its status has come: read up to it. The handler
        # at the other end returns when it has read our end frame, or the pulse ends this at `abort_at`. No half-close
        # by `done_writing`: the read does that, see `_beat`.
        with self._receive_lock, contextlib.suppress(StopIteration, *errors):
            for _ in itertools.repeat(None):
                self._reader.read_chunk()
        with contextlib.suppress(*errors):
            self._writer.close()
        self._forget(self)
