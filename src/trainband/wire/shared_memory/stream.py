"""Shared-memory streams between processes of one machine. Linux only.

A Unix socket carries the headers, memory segments private to the two ends carry the bodies: the
sender copies the arrays into one, the receiver reads them in place. 318 kB each way cost both sides
together 70 us of CPU, against 450 us with Flight on loopback.

A frame (see `wire/transport.py`) is one packet of the socket. Its prefix names the slot, that is the segment, that
holds the body. A new segment is sent with the packet, as a descriptor:

    packet     prefix | header | sizes      (descriptors of a new segment and of its doorbell)
    segment    one page of control words | body

If header and sizes are longer than 64 KiB, they are in the segment too, before the body:

    packet     prefix
    segment    one page of control words | header | sizes | gap to a multiple of 64 | body

Nothing has a name in a file system. The socket's name is in the abstract namespace, the segments are memfds
whose descriptors travel over the socket, and the kernel frees all of them however a process ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainband.errors import PeerError, ProtocolError
from trainband.wire.arena import aligned, as_bytes
from trainband.wire.frame import Frame
from trainband.wire.handling import closed_here, ended, not_taken, stopping, too_large, vanished
from trainband.wire.limits import LIMITS
from trainband.wire.shared_memory.segment import Segment
from trainband.wire.shared_memory.slots import EMPTY, SLOTS, InSlots, OutSlots, most_bytes_of
from trainband.wire.transport import Timeouts

# kind, slot, flags, bytes of header, arrays, sequence number of the body
_PREFIX = struct.Struct("<BBHIIxxxxQ")
_ACCEPTED, _FRAME, _END, _TICKET = 1, 2, 3, 4
_NEW_SEGMENT, _HEADER_IN_SEGMENT = 1, 2  # flags

_LARGE, _S_PER_NEW_BYTE = 16 << 20, 0.5e-9
"""A body of this many bytes waits for memory that was used before, as long as a first use of memory would take."""
_CUT_SHORT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)  # as an enum it would cost 1 us a frame

_SO_PEEK_OFF = 42
"""Linux's, missing from Python: sets the offset of the next peek."""

# A longer header (or list of sizes) travels in the segment: a packet must fit into the socket's buffer, 208 KiB.
_PACKET_BYTES = 64 << 10


class SharedMemoryStream:
    """One end of a shared-memory stream.

    Two bodies may be in flight in each direction: a third `send` waits until the other end has called
    `receive` for the second one and thus given the first one back.
    """

    def __init__(
        self, connection: socket.socket, peer: str, timeouts: Timeouts, forget: Callable[[SharedMemoryStream], None]
    ) -> None:
        connection.setblocking(False)
        self.most_bytes = LIMITS.frame_bytes
        self._socket = connection
        self._peer = peer
        self._timeouts = timeouts
        self._forget = forget
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._closed = self._released = False
        self._is_stopping = False
        self._over: PeerError | None = None
        self._out, self._in = OutSlots(), InSlots()
        self._packet = bytearray(_PREFIX.size + _PACKET_BYTES)
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def transport(self) -> str:
        return "shared memory"

    @property
    def silent_s(self) -> float:
        return 0.0

    @property
    def moved_s(self) -> float:
        return math.inf  # a frame arrives as a whole

    @property
    def alive(self) -> bool:
        if self._closed or self._over is not None:
            return False
        hung_up = select.poll()
        try:
            hung_up.register(self._socket, select.POLLRDHUP)
            return not hung_up.poll(0)
        except (OSError, ValueError):
            return False  # closed by another thread in the meantime

    @property
    def outlives_sender(self) -> bool:
        # The packet is in the other end's socket, the body in memory that both ends hold.
        return True

    def send(self, header: bytes, body: Sequence[NDArray[np.generic]] = ()) -> None:
        with self._send_lock:
            if self._closed:
                raise closed_here(self._peer)
            if self._over is not None:
                raise self._over
            deadline = time.monotonic() + self._timeouts.stall_s
            sizes = tuple(array.nbytes for array in body)
            tail = header + struct.pack(f"<{len(sizes)}Q", *sizes) if sizes else header
            if not any(sizes) and len(tail) <= _PACKET_BYTES:
                self._send_packet([_PREFIX.pack(_FRAME, 0, 0, len(header), len(sizes), 0), tail], (), deadline)
                return
            flags = start = 0
            if len(tail) > _PACKET_BYTES:
                flags, start = _HEADER_IN_SEGMENT, aligned(len(tail))
            number, segment, descriptor = self._acquire_slot(start + most_bytes_of(sizes), deadline)
            try:
                for view, array in zip(segment.views(sizes, start), body, strict=True):
                    np.copyto(view, as_bytes(array))
                if start:
                    segment.body[: len(tail)] = np.frombuffer(tail, np.uint8)
                    tail = b""
                sequence = self._out.lend(number)
                descriptors: tuple[int, ...] = ()
                if descriptor >= 0:
                    flags |= _NEW_SEGMENT
                    descriptors = (descriptor, self._out.doorbell)
                prefix = _PREFIX.pack(_FRAME, number, flags, len(header), len(sizes), sequence)
                self._send_packet([prefix, tail], descriptors, deadline)
            finally:
                if descriptor >= 0:
                    os.close(descriptor)

    def _acquire_slot(self, size: int, deadline: float) -> tuple[int, Segment, int]:
        # The receiver is about to give back the last body if it waits for this one.
        patient_until = time.monotonic() + (size * _S_PER_NEW_BYTE if size >= _LARGE else 0.0)
        while True:
            now = time.monotonic()
            taken = self._out.acquire(size, may_grow=now >= patient_until)
            if taken is not None:
                return taken
            if now >= deadline:
                raise not_taken(self._peer, self._timeouts.stall_s)
            is_patient = now < patient_until
            until = min(deadline, patient_until) if is_patient else deadline
            if not self._out.wait(self._socket, until - now, size if is_patient else 0):
                raise self._gone()

    def _send_packet(self, parts: list[bytes], descriptors: tuple[int, ...], deadline: float) -> None:
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
            if descriptors
            else []
        )
        while True:
            try:
                self._socket.sendmsg(parts, rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._socket, select.POLLOUT)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise not_taken(self._peer, self._timeouts.stall_s) from None
                poll.poll(remaining * 1000)
            except OSError as exc:
                raise self._gone() from exc
            else:
                return

    def _gone(self) -> PeerError:
        """Why nothing more can be sent. The other end may have sent the reason, after data not yet received."""
        if self._closed:
            return closed_here(self._peer)
        reason = None if self._over else _reason_in(self._socket)
        if reason is not None:
            return ended(self._peer, reason)
        # If the other end has gone, a receiving thread may have just read why and stopped waiting.
        if not self.alive and self._receive_lock.acquire(timeout=self._timeouts.grace_s):
            self._receive_lock.release()
        return self._over or vanished(self._peer)

    def receive(self, timeout_s: float) -> Frame | None:
        with self._receive_lock:
            if self._closed:
                raise closed_here(self._peer)
            if self._over is not None:
                raise self._over
            self._in.release()
            deadline = time.monotonic() + timeout_s
            remaining = timeout_s
            while True:
                # Rounded up: poll counts whole milliseconds, and the last fraction must not be a busy wait.
                ready = self._readable.poll(max(0.0, remaining) * 1000 + 1 if remaining > 0 else 0)
                if ready:
                    packet = self._receive_packet()
                    if packet is not None:
                        return packet
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None

    def _receive_packet(self) -> Frame | None:
        try:
            size, rights, flags, _ = self._socket.recvmsg_into([self._packet], 64, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # The other end has gone without reading our last packets. The kernel reports this once, before it
            # delivers what the other end had sent.
            return None
        except OSError as exc:
            raise self._end(closed_here(self._peer) if self._closed else vanished(self._peer)) from exc
        descriptors = [
            descriptor
            for level, kind, data in rights
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (descriptor,) in struct.iter_unpack("i", data[: len(data) // 4 * 4])
        ]
        try:
            if size == 0:
                raise self._end_of_stream()
            if size < _PREFIX.size or flags & _CUT_SHORT:
                raise ValueError("packet")
            return self._open_packet(memoryview(self._packet)[:size], descriptors)
        except PeerError:
            raise
        except (ValueError, IndexError, OverflowError, MemoryError, OSError, struct.error) as exc:
            raise self._end(ProtocolError(f"{self._peer} sent a frame that contradicts itself ({exc}).")) from exc
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _end_of_stream(self) -> PeerError:
        if self._closed:
            return closed_here(self._peer)
        if self._is_stopping:
            return stopping("this task's listener")  # not the end: an answer may still be sent
        return self._end(vanished(self._peer))

    def _end(self, error: PeerError) -> PeerError:
        self._over = error
        return error

    def _open_packet(self, packet: memoryview, descriptors: list[int]) -> Frame | None:
        kind, number, flags, header_size, arrays, sequence = _PREFIX.unpack_from(packet)
        tail: memoryview = packet[_PREFIX.size :]
        if kind == _END:
            raise self._end(ended(self._peer, bytes(tail).decode(errors="replace")))
        if kind == _ACCEPTED:
            return Frame(b"")
        if kind == _TICKET:
            return Frame(bytes(tail))
        if kind != _FRAME:
            raise ValueError(f"kind {kind}")
        if number >= SLOTS:
            raise ValueError(f"slot {number}")
        if flags & _NEW_SEGMENT:
            self._in.map(number, descriptors)
        start = 0
        if sequence:
            self._in.borrow(number, sequence)
        if flags & _HEADER_IN_SEGMENT:
            start = header_size + 8 * arrays
            tail = memoryview(self._in.tail(number, start))
            start = aligned(start)
        header = bytes(tail[:header_size])
        raw_sizes = bytes(tail[header_size:])
        if len(header) != header_size or len(raw_sizes) != 8 * arrays:
            raise ValueError("lengths")
        if not arrays:
            return Frame(header)
        sizes = self._in.sizes(number, raw_sizes)
        if not sequence:
            if any(sizes):
                raise ValueError("no body")
            return Frame(header, (EMPTY,) * arrays)
        if sum(sizes) > self.most_bytes:
            raise self._end(too_large(self._peer, sum(sizes), self.most_bytes))
        return Frame(header, self._in.views(number, sizes, start))

    def send_ticket(self, ticket: bytes) -> None:
        """Sends the client's first packet: the ticket from the listener."""
        self._send_control(_TICKET, ticket)

    def accept(self) -> None:
        """Tells the client that its stream is accepted."""
        self._send_control(_ACCEPTED, b"")

    def _send_control(self, kind: int, tail: bytes) -> None:
        with self._send_lock:
            prefix = _PREFIX.pack(kind, 0, 0, 0, 0, 0)
            self._send_packet([prefix, tail], (), time.monotonic() + self._timeouts.connect_s)

    def refuse_more(self) -> None:
        self._is_stopping = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def cut(self) -> None:
        """Ends all blocking calls of this end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end("")

    def interrupt(self) -> None:
        self._closed = True

    def end(self, reason: str) -> None:
        with self._close_lock:
            if self._released:
                return
            # Does not wait for a send that waits for the other end, but does not split its frame either:
            # a frame is one packet.
            free = self._send_lock.acquire(timeout=self._timeouts.grace_s)
            self._closed = True
            if free:
                words = [_PREFIX.pack(_END, 0, 0, 0, 0, 0), reason.encode()[:8192]]
                with contextlib.suppress(OSError):
                    self._socket.sendmsg(words, [], socket.MSG_NOSIGNAL)
                self._send_lock.release()
            self.cut()
            # Both threads must see that before their descriptors are closed, or the next file would get the number.
            with self._send_lock, self._receive_lock:
                self._in.close()
                self._socket.close()
                self._out.close()
            self._released = True
        self._forget(self)


def _reason_in(connection: socket.socket) -> str | None:
    """Returns why the other end has closed, if it has said so. All its data is still to be received."""
    packet = bytearray(_PREFIX.size + _PACKET_BYTES)
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
        while True:
            try:
                size = connection.recv_into(packet, 0, socket.MSG_PEEK)
            except ConnectionResetError:  # the kernel reports this once, see `_receive_packet`
                continue
            if size < _PREFIX.size:
                break
            if packet[0] == _END:
                return packet[_PREFIX.size : size].decode(errors="replace")
    return None


def is_supported() -> bool:
    """Whether this machine supports these streams."""
    return sys.platform == "linux"
