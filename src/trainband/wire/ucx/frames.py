"""Frames as UCX messages; `wire/transport.py` defines a frame.

A message's tag holds its kind. The sizes come before the header, because they rarely change:

    FRAME     prefix | sizes | header | gap to a multiple of 64 | body
    HEAD      prefix | sizes | header
    CHUNK     body[...], 16 MiB, the last one less

A small frame is one message of the kind FRAME. A large one is a HEAD, then its CHUNKs, several of which are in flight
at a time: so the sender can tell whether the other end takes anything, and the receiver gets each in its final place.

The sender gives UCX a list of addresses: large arrays are sent in place, small ones are gathered, with the
gaps that align them. The receiver's memory has the layout of the body, and JAX reads it in place.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import PeerError, ProtocolError
from trainband.wire.arena import aligned, aligned_memory, as_bytes, layout
from trainband.wire.frame import Bytes, Frame
from trainband.wire.handling import ended, too_large
from trainband.wire.limits import LIMITS
from trainband.wire.ucx.endpoint import Endpoint

# bytes of header, arrays, bytes of the whole body as laid out; the sizes of the arrays and the header follow
_PREFIX = struct.Struct("<IIQ")

CHUNK_BYTES = 16 << 20
SMALL_HEAD = 64 << 10
"""Bytes. A frame with a longer head, which would displace its body, is sent in several messages."""
_GATHER_BELOW = 16 << 10
"""Bytes. A smaller array is copied: another address costs as much."""
_WINDOW = 4
"""Chunks in flight."""
_MOST_REASON = 8192
"""Size limit of the reason for a stream's end, in bytes."""
_MOST_HEAD = 64 << 20
"""Size limit of a header with the sizes of its arrays, in bytes."""


class Kind(IntEnum):
    """The kind of a message; in the lowest bits of its tag."""

    FRAME = 1  # head and body
    HEAD = 2  # of a frame whose body follows in chunks, if it has one
    CHUNK = 3
    ALIVE = 4
    END = 5
    HELLO = 6
    ACCEPTED = 7


@dataclass(frozen=True, slots=True)
class _Run:
    """A range of a body in one place: in an array, or, if `array` is -1, among the gathered bytes."""

    array: int
    start: int
    stop: int


class _Message:
    """One message of a frame: a list of (address, bytes), some of which change with every frame.

    Args:
      runs: its part of the body.
      gathered: the address of the gathered bytes.
      head: number of addresses before those of the body.
    """

    def __init__(self, kind: Kind, runs: Sequence[_Run], gathered: int, head: int = 0) -> None:
        self.kind = kind
        self.places = np.zeros((head + len(runs), 2), np.uint64)
        self.count = len(self.places)
        self.address = _address(self.places)
        self._arrays = []
        for row, run in enumerate(runs, head):
            self.places[row] = (gathered + run.start if run.array < 0 else 0, run.stop - run.start)
            if run.array >= 0:
                self._arrays.append((row, run.array, run.start))

    def fill(self, body: Sequence[NDArray[np.generic]]) -> None:
        """Fills in the addresses of this frame's arrays."""
        for row, array, start in self._arrays:
            self.places[row, 0] = _address(body[array]) + start


class _Plan:
    """How to send bodies of given sizes."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        offsets, self.end = layout(sizes)
        runs, copied, gathered = _runs(sizes, offsets, self.end)
        self._gathered = aligned_memory(gathered)
        self._gathered[:] = 0
        self._copies = [(index, self._gathered[start : start + sizes[index]]) for index, start in copied]
        address = _address(self._gathered)
        chunks = _chunks(runs)
        self._packed_sizes = struct.pack(f"<{len(sizes)}Q", *sizes)
        self._reserve(0)
        is_small = len(chunks) == 1 and self.end <= CHUNK_BYTES - SMALL_HEAD
        self._frame = _Message(Kind.FRAME, chunks[0], address, 1) if is_small else None
        self._head_alone = _Message(Kind.HEAD, (), address, 1)
        self._chunks = [_Message(Kind.CHUNK, chunk, address) for chunk in chunks]

    def _reserve(self, header_size: int) -> None:
        """Makes room for the head of a frame, and writes its constant part."""
        self._room = max(256, 2 * header_size)
        self._head = aligned_memory(aligned(_PREFIX.size + len(self._packed_sizes) + self._room))
        self._head[:] = 0
        self._head_address = _address(self._head)
        self._head_view = memoryview(self._head)
        start = _PREFIX.size
        self._header_start = start + len(self._packed_sizes)
        self._head_view[start : self._header_start] = self._packed_sizes

    def messages(self, header: bytes, body: Sequence[NDArray[np.generic]]) -> list[_Message]:
        """Returns the messages that make up a frame."""
        if len(header) > self._room:
            self._reserve(len(header))
        _PREFIX.pack_into(self._head, 0, len(header), len(self.sizes), self.end)
        stop = self._header_start + len(header)
        self._head_view[self._header_start : stop] = header
        for index, place in self._copies:
            np.copyto(place, as_bytes(body[index]))
        if self._frame is not None and stop <= SMALL_HEAD:
            # The body follows the head, at an aligned offset.
            self._frame.places[0] = (self._head_address, aligned(stop))
            self._frame.fill(body)
            return [self._frame]
        self._head_alone.places[0] = (self._head_address, stop)
        for chunk in self._chunks:
            chunk.fill(body)
        return [self._head_alone, *self._chunks]


def _runs(sizes: tuple[int, ...], offsets: Sequence[int], end: int) -> tuple[list[_Run], list[tuple[int, int]], int]:
    """Returns a body as runs, (array, offset among the gathered bytes) of each small one, and the gathered size."""
    runs: list[_Run] = []
    copied: list[tuple[int, int]] = []
    begun, gathered = 0, 0  # of the body; of the gathered bytes

    def gather(until: int) -> None:
        nonlocal begun, gathered
        if until > begun:
            runs.append(_Run(-1, gathered, gathered + until - begun))
            gathered += until - begun
        begun = until

    for index, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        if size >= _GATHER_BELOW:
            gather(offset)
            runs.append(_Run(index, 0, size))
            begun = offset + size
        elif size:
            copied.append((index, gathered + offset - begun))
    gather(end)
    return runs, copied, gathered


def _chunks(runs: list[_Run]) -> list[list[_Run]]:
    chunks: list[list[_Run]] = []
    room = 0
    for run in runs:
        start = run.start
        while start < run.stop:
            if not room:
                chunks.append([])
                room = CHUNK_BYTES
            stop = min(run.stop, start + room)
            chunks[-1].append(_Run(run.array, start, stop))
            room -= stop - start
            start = stop
    return chunks


def _address(memory: NDArray[Any]) -> int:
    address: int = memory.__array_interface__["data"][0]
    return address


class Outbox:
    """Sends frames, one at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._plan = _Plan(())
        self._left: deque[_Message] = deque()
        self._under_way: deque[int] = deque()
        self._held: Sequence[NDArray[np.generic]] = ()
        self.taken = 0
        """Number of messages that UCX has finished."""

    def load(self, header: bytes, body: Sequence[NDArray[np.generic]]) -> None:
        """Takes the next frame. Its arrays belong to the outbox until `advance` reports that it has gone."""
        sizes = tuple([array.nbytes for array in body])
        if sizes != self._plan.sizes:
            self._plan = _Plan(sizes)
        self._held = body  # UCX reads them until they have gone, even if the sending thread is gone
        self._left.extend(self._plan.messages(header, body))

    def advance(self) -> bool:
        """Sends what may be sent now; returns whether the whole frame has gone.

        Raises:
          Broken: it cannot be sent.
        """
        while True:
            while self._left and len(self._under_way) < _WINDOW:
                message = self._left.popleft()
                if message.count == 1:
                    address, count = message.places[0].tolist()
                    request = self._endpoint.send(message.kind, address, count)
                else:
                    request = self._endpoint.send(message.kind, message.address, message.count, scattered=True)
                if request:
                    self._under_way.append(request)
                else:
                    self.taken += 1
            if not self._under_way:
                self._held = ()
                return True
            if not self._endpoint.finished(self._under_way[0]):
                return False
            self._under_way.popleft()
            self.taken += 1


class _Memory:
    """The memory that receives a frame, reused for later ones."""

    def __init__(self) -> None:
        self.bytes = aligned_memory(0)
        self.address = _address(self.bytes)
        self._made_for: tuple[tuple[int, ...], int] | None = None
        self._views: tuple[Bytes, ...] = ()

    def reserve(self, size: int) -> int:
        """Makes room for this many bytes; returns the address."""
        if size > self.bytes.size:
            # Free the old memory before allocating, or a growing body would need both.
            self._views, self._made_for, self.bytes = (), None, aligned_memory(0)
            self.bytes = aligned_memory(size)
            self.address = _address(self.bytes)
        return self.address

    def views(self, sizes: tuple[int, ...], start: int) -> tuple[Bytes, ...]:
        """Returns one view per array of a body that begins at `start`; the same objects for the same sizes."""
        if self._made_for != (sizes, start):
            offsets, _ = layout(sizes)
            self._views = tuple(
                self.bytes[start + offset : start + offset + size] for offset, size in zip(offsets, sizes, strict=True)
            )
            self._made_for = (sizes, start)
        return self._views


@dataclass(frozen=True, slots=True)
class _Layout:
    """The received sizes of a frame's arrays, and the end of its body with and without gaps."""

    raw_sizes: bytes
    sizes: tuple[int, ...]
    end: int
    nbytes: int


class Inbox:
    """Receives frames, one at a time.

    The last frame keeps its memory until it is given back; meanwhile another may be received into other memory,
    but not a third.
    """

    def __init__(self, endpoint: Endpoint, peer: str) -> None:
        self._endpoint = endpoint
        self._peer = peer
        self._lent: _Memory | None = None
        self._spare = [_Memory()]
        self._filling: _Memory | None = None
        self._head = aligned_memory(0)
        self._coming: tuple[int, int, int] | None = None  # kind, bytes and request of the message being received
        self._chunks: deque[int] = deque()
        self._placed = self._end = self._start = 0
        self._header = b""
        self._layout = _Layout(b"", (), 0, 0)
        self.is_whole = False
        """Whether a frame can be taken."""
        self.most_bytes = LIMITS.frame_bytes
        self.parting: PeerError | None = None
        """Why nothing more is sent; earlier messages may still arrive."""
        self.over: PeerError | None = None
        """Why nothing more arrives."""
        self.heard = 0
        """Grows with each message that begins to arrive, and with each chunk that has arrived."""

    @property
    def is_within(self) -> bool:
        """Whether a frame has been received only in part."""
        return not self.is_whole and (self._coming is not None or self._end > 0)

    @property
    def is_parted(self) -> bool:
        """Whether the other end has announced its end, even if its earlier messages are still to be received."""
        return self.parting is not None or self.over is not None

    def poll_end(self) -> bool:
        """Checks for the announcement; returns `is_parted`."""
        if not self.is_parted and (handle := self._endpoint.find(Kind.END)):
            self._part(handle, self._endpoint.found[1])
        return self.is_parted

    def _part(self, handle: int, length: int) -> None:
        reason = aligned_memory(min(length, _MOST_REASON))
        if length <= reason.size and not self._endpoint.accept(handle, _address(reason), length):
            self.parting = ended(self._peer, reason.tobytes().decode(errors="replace"))
        else:  # a message that short arrives at once
            self.parting = ended(self._peer, "")

    def release(self) -> None:
        """Ends the loan of the last frame."""
        if self._lent is not None:
            self._spare.append(self._lent)
            self._lent = None

    def pop(self) -> Frame:
        """Returns the complete frame found by `advance`."""
        self.is_whole = False
        self._lent, self._filling = self._filling, None
        views = () if self._lent is None else self._lent.views(self._layout.sizes, self._start)
        return Frame(self._header, views)

    def advance(self) -> bool:
        """Takes what has arrived; returns whether a frame is complete, or nothing more arrives.

        Raises:
          Broken: the connection to the other end has broken.
        """
        while not self.is_whole and self.over is None:
            if self._coming is not None:
                kind, length, request = self._coming
                if request and not self._endpoint.finished(request):
                    return False
                self._coming = None
                self._open(kind, length)
            elif not self._end:
                if not self._open_message():
                    return False
            elif not self._receive_chunks():
                return False
        return True

    def _open_message(self) -> bool:
        handle = self._endpoint.find()
        if not handle:
            self.over = self.parting
            return self.over is not None
        self.heard += 1
        kind, length = self._endpoint.found
        if kind == Kind.FRAME and length <= CHUNK_BYTES:
            self._filling = self._spare.pop() if self._spare else _Memory()
            memory = self._filling.reserve(length)
        elif kind == Kind.END:
            self._part(handle, length)
            return True
        elif kind in (Kind.HEAD, Kind.ALIVE, Kind.HELLO, Kind.ACCEPTED) and length <= _MOST_HEAD:
            if self._head.size < length:
                self._head = aligned_memory(length)
            memory = _address(self._head)
        else:
            self.over = ProtocolError(
                f"{self._peer} sent a message of the kind {kind} with {length:,} bytes, which is not allowed here."
            )
            return True
        self._coming = kind, length, self._endpoint.accept(handle, memory, length)
        return True

    def _open(self, kind: int, length: int) -> None:
        """Reads a message that has arrived."""
        if kind not in (Kind.FRAME, Kind.HEAD):
            return
        memory = self._head if self._filling is None else self._filling.bytes
        try:
            self._read_head(memory, length, kind == Kind.FRAME)
        except (struct.error, ValueError, MemoryError) as exc:
            self.over = ProtocolError(f"{self._peer} sent a frame that contradicts itself ({exc}).")

    def _read_head(self, memory: Bytes, length: int, is_frame: bool) -> None:
        header_size, arrays, end = _PREFIX.unpack_from(memory)
        start = _PREFIX.size + 8 * arrays
        stop = start + header_size
        if stop > length:
            raise ValueError("lengths")
        raw_sizes = memory[_PREFIX.size : start].tobytes()
        self._header = memory[start:stop].tobytes()
        if raw_sizes != self._layout.raw_sizes:
            sizes = struct.unpack(f"<{arrays}Q", raw_sizes)
            self._layout = _Layout(raw_sizes, sizes, layout(sizes)[1], sum(sizes))
        if self._layout.nbytes > self.most_bytes:
            self.over = too_large(self._peer, self._layout.nbytes, self.most_bytes)
            return
        if end != self._layout.end:
            raise ValueError("sizes")
        if is_frame:
            self._start = aligned(stop)
            if self._start + end != length:
                raise ValueError("body")
            self.is_whole = True
            return
        self._start = self._placed = 0
        if end or arrays:
            self._filling = self._spare.pop() if self._spare else _Memory()
            self._filling.reserve(end)
        self._end = end
        self.is_whole = not end

    def _receive_chunks(self) -> bool:
        """Receives chunks; returns whether any of the body has arrived."""
        assert self._filling is not None
        moved = False
        while self._placed < self._end and len(self._chunks) < _WINDOW:
            chunk = self._endpoint.find(Kind.CHUNK)
            if not chunk:
                break
            moved = True
            self.heard += 1
            length = self._endpoint.found[1]
            if length != min(CHUNK_BYTES, self._end - self._placed):
                self.over = ProtocolError(f"{self._peer} sent a body that does not match its frame.")
                return True
            request = self._endpoint.accept(chunk, self._filling.address + self._placed, length)
            self._placed += length
            if request:
                self._chunks.append(request)
        while self._chunks and self._endpoint.finished(self._chunks[0]):
            self._chunks.popleft()
            self.heard += 1
            moved = True
        if self._placed == self._end and not self._chunks:
            self._end, self.is_whole = 0, True
            return True
        if not moved and self.poll_end():  # in the middle of a frame
            self.over = self.parting
            return True
        return moved
