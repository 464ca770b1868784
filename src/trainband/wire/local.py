"""Shared-memory streams between processes of one machine. Linux only.

A Unix socket carries the headers, memory segments that only the two ends can reach carry the bodies: the
sender copies the arrays into one, the receiver reads them where they are. 318 kB each way cost both sides
together 70 us of CPU, against 450 us with Flight on loopback.

Nothing of it has a name in a file system. The socket's is in the abstract namespace, the segments are memfds
whose descriptors travel over the socket, and the kernel takes all of them back however a process ends.
"""

from __future__ import annotations

import contextlib
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

from ..errors import DeadlineExceeded, PeerError, ProtocolError
from .arena import aligned, as_bytes
from .limits import LIMITS
from .segment import InSlot, OutSlot, Segment, map_received
from .serving import closed_here, ended, stopping, too_large, vanished
from .transport import Frame, Timeouts

# kind, slot, flags, bytes of header, arrays, sequence number of the body
_PREFIX = struct.Struct("<BBHIIxxxxQ")
_WELCOME, _FRAME, _END, _TICKET = 1, 2, 3, 4
_NEW_SEGMENT, _HEADER_IN_SEGMENT = 1, 2  # flags

_CUT_SHORT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)  # as an enum it would cost 1 us a frame

_SLOTS = 2
# A longer header (or list of sizes) travels in the segment: a packet must fit into the socket's buffer, 208 KiB.
_PACKET_BYTES = 64 << 10
# While a sender waits for its receiver it also looks by itself this often: the flag and the counter are two
# words of memory, and a processor may let each side see its own first.
_RECHECK_S = 0.01


class LocalStream:
    """One end of a shared-memory stream.

    Two bodies may be on their way in each direction: a third `send` waits until the other end has called
    `receive` for the second one and thus given the first one back.
    """

    def __init__(
        self, connection: socket.socket, peer: str, timeouts: Timeouts, forget: Callable[[LocalStream], None]
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
        self._out = [OutSlot() for _ in range(_SLOTS)]
        self._in = [InSlot() for _ in range(_SLOTS)]
        self._doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._sequence = 0
        self._borrowed: tuple[InSlot, int] | None = None
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
    def alive(self) -> bool:
        if self._closed or self._over is not None:
            return False
        hung_up = select.poll()
        try:
            hung_up.register(self._socket, select.POLLRDHUP)
            return not hung_up.poll(0)
        except (OSError, ValueError):
            return False  # closed by another thread meanwhile

    @property
    def keeps(self) -> bool:
        # The packet lies in the other end's socket, the body in memory that both ends hold.
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
            number, segment, descriptor = self._take_slot(start + _end_of(sizes), deadline)
            try:
                for view, array in zip(segment.views(sizes, start), body, strict=True):
                    np.copyto(view, as_bytes(array))
                if start:
                    segment.body[: len(tail)] = np.frombuffer(tail, np.uint8)
                    tail = b""
                self._sequence += 1
                self._out[number].sequence = self._sequence
                descriptors: tuple[int, ...] = ()
                if descriptor >= 0:
                    flags |= _NEW_SEGMENT
                    descriptors = (descriptor, self._doorbell)
                prefix = _PREFIX.pack(_FRAME, number, flags, len(header), len(sizes), self._sequence)
                self._send_packet([prefix, tail], descriptors, deadline)
            finally:
                if descriptor >= 0:
                    os.close(descriptor)

    def _take_slot(self, size: int, deadline: float) -> tuple[int, Segment, int]:
        """A slot that nobody reads: its number, its memory of at least `size` bytes, and, if that is new, its
        descriptor, else -1.
        """
        while True:
            free = [slot for slot in self._out if slot.is_free()]
            if free:
                break
            self._wait_for_slot(deadline)
        # The first that is large enough: in lockstep one slot does for most frames, and memory that is used
        # again costs no page faults.
        for slot in free:
            if slot.segment is not None and slot.segment.body.size >= size:
                return self._out.index(slot), slot.segment, -1
        segment, descriptor = free[0].grow(size)
        return self._out.index(free[0]), segment, descriptor

    def _wait_for_slot(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise self._stalled()
        segments = [slot.segment for slot in self._out if slot.segment is not None]
        for segment in segments:
            segment.control[1] = 1
        try:
            if any(slot.is_free() for slot in self._out):
                return
            poll = select.poll()
            poll.register(self._doorbell, select.POLLIN)
            poll.register(self._socket, 0)  # POLLHUP and POLLERR come unasked
            for descriptor, _ in poll.poll(min(remaining, _RECHECK_S) * 1000):
                if descriptor == self._doorbell:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._doorbell)
                else:
                    raise closed_here(self._peer) if self._closed else self._gone()
        finally:
            for segment in segments:
                segment.control[1] = 0

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
                    raise self._stalled() from None
                poll.poll(remaining * 1000)
            except OSError as exc:
                raise closed_here(self._peer) if self._closed else self._gone() from exc
            else:
                return

    def _stalled(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{self._peer} has taken nothing from its stream for {self._timeouts.stall_s} s; check that it is "
            "not stopped, or raise Timeouts.stall_s."
        )

    def _gone(self) -> PeerError:
        return self._over or vanished(self._peer)

    def receive(self, timeout_s: float) -> Frame | None:
        with self._receive_lock:
            if self._closed:
                raise closed_here(self._peer)
            if self._over is not None:
                raise self._over
            self._give_back()
            deadline = time.monotonic() + timeout_s
            remaining = timeout_s
            while True:
                # Rounded up: poll counts whole milliseconds, and the last part of one must not be a busy wait.
                ready = self._readable.poll(max(0.0, remaining) * 1000 + 1 if remaining > 0 else 0)
                if ready:
                    packet = self._receive_packet()
                    if packet is not None:
                        return packet
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None

    def _give_back(self) -> None:
        """Ends the loan of the last body."""
        if self._borrowed is None:
            return
        slot, sequence = self._borrowed
        self._borrowed = None
        if slot.segment is not None:
            slot.segment.control[0] = sequence
            if slot.segment.control[1]:
                with contextlib.suppress(OSError):  # it rings already
                    os.eventfd_write(slot.doorbell, 1)

    def _receive_packet(self) -> Frame | None:
        try:
            size, rights, flags, _ = self._socket.recvmsg_into([self._packet], 64, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # The other end has gone with packets of ours unread. The kernel says so once, before it gives
            # us what the other end had sent.
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
        if kind == _WELCOME:
            return Frame(b"")
        if kind == _TICKET:
            return Frame(bytes(tail))
        if kind != _FRAME:
            raise ValueError(f"kind {kind}")
        slot = self._in[number]
        if flags & _NEW_SEGMENT:
            slot.replace(map_received(descriptors), os.dup(descriptors[1]))
            slot.raw_sizes, slot.sizes = b"", ()
        start = 0
        if sequence:
            self._borrowed = (slot, sequence)
        segment = slot.segment
        if flags & _HEADER_IN_SEGMENT:
            if segment is None:
                raise ValueError("no segment")
            start = header_size + 8 * arrays
            if start > segment.body.size:
                raise ValueError("lengths")
            tail = memoryview(segment.body[:start].tobytes())
            start = aligned(start)
        header = bytes(tail[:header_size])
        raw_sizes = bytes(tail[header_size:])
        if len(header) != header_size or len(raw_sizes) != 8 * arrays:
            raise ValueError("lengths")
        if not arrays:
            return Frame(header)
        if raw_sizes != slot.raw_sizes:
            slot.raw_sizes, slot.sizes = raw_sizes, struct.unpack(f"<{arrays}Q", raw_sizes)
        if not sequence:
            if any(slot.sizes):
                raise ValueError("no body")
            return Frame(header, tuple(np.empty(0, np.uint8) for _ in range(arrays)))
        if segment is None:
            raise ValueError("no segment")
        if sum(slot.sizes) > self.most_bytes:
            raise self._end(too_large(self._peer, sum(slot.sizes), self.most_bytes))
        return Frame(header, segment.views(slot.sizes, start))

    def knock(self, ticket: bytes) -> None:
        """The client's first packet: what it was given to be let in with."""
        self._send_word(_TICKET, ticket)

    def welcome(self) -> None:
        """Tells the client that it was let in."""
        self._send_word(_WELCOME, b"")

    def _send_word(self, kind: int, tail: bytes) -> None:
        with self._send_lock:
            prefix = _PREFIX.pack(kind, 0, 0, 0, 0, 0)
            self._send_packet([prefix, tail], (), time.monotonic() + self._timeouts.connect_s)

    def refuse_more(self) -> None:
        self._is_stopping = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def cut(self) -> None:
        """Ends whatever this end is blocked in."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end("")

    def interrupt(self) -> None:
        self._closed = True

    def end(self, reason: str) -> None:
        """Closes with parting words."""
        with self._close_lock:
            if self._released:
                return
            # A send that waits for the other end is not waited for, but its frame is not cut in two either:
            # a frame is one packet.
            free = self._send_lock.acquire(timeout=self._timeouts.grace_s)
            self._closed = True
            if free:
                words = [_PREFIX.pack(_END, 0, 0, 0, 0, 0), reason.encode()[:8192]]
                with contextlib.suppress(OSError):
                    self._socket.sendmsg(words, [], socket.MSG_NOSIGNAL)
                self._send_lock.release()
            self.cut()
            # Both threads have seen that before their descriptors go, or the next file would get the number.
            with self._send_lock, self._receive_lock:
                self._give_back()
                self._socket.close()
                os.close(self._doorbell)
                for slot in self._in:
                    slot.close()
                self._out.clear()
            self._released = True
        self._forget(self)


def _end_of(sizes: tuple[int, ...]) -> int:
    """How many bytes a body needs at most."""
    return sum(map(aligned, sizes))


def is_supported() -> bool:
    """Whether this machine has what the streams are made of."""
    return sys.platform == "linux"
