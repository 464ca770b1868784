"""Frames as messages of UCX.

A small frame is one message: its head and its body, laid out as `arena.layout` says. A large one is a message with the
head, then one for each 16 MiB of the body, some of which are under way at a time: so who sends can tell whether the
other end takes anything, and who receives has each where it stays.

The sender gives UCX a list of addresses: large arrays are sent from where they lie, small ones are gathered, with the
gaps that align them. The receiver's memory has the layout of the body, and is what JAX reads.
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

from ...errors import PeerError, ProtocolError
from ..arena import aligned, aligned_memory, as_bytes, layout
from ..limits import LIMITS
from ..serving import ended, too_large
from ..transport import Bytes, Frame
from .pipe import Pipe

# bytes of header, arrays, bytes of the whole body as it is laid out; the sizes of the arrays and the header follow
_PREFIX = struct.Struct("<IIQ")

CHUNK_BYTES = 16 << 20
SMALL_HEAD = 64 << 10
"""Bytes. A frame with a longer head, in front of which its body would be moved, is sent in several messages."""
_GATHER_BELOW = 16 << 10
"""Bytes. A smaller array is copied: an address more costs as much."""
_WINDOW = 4
"""Chunks that may be under way."""
_MOST_WORDS = 8192
"""Bytes of parting words."""
_MOST_HEAD = 64 << 20
"""Bytes of a header and of the sizes of its arrays."""


class Kind(IntEnum):
    """What a message is; in the lowest bits of its tag."""

    FRAME = 1  # head and body
    HEAD = 2  # of a frame whose body follows in chunks, if it has one
    CHUNK = 3
    ALIVE = 4
    END = 5
    HELLO = 6
    WELCOME = 7


@dataclass(frozen=True, slots=True)
class _Run:
    """A range of a body that lies in one place: in an array, or, where `array` is -1, among the gathered ones."""

    array: int
    start: int
    stop: int


class _Message:
    """One message of a frame: a list of (address, bytes), some of which change with every frame.

    Args:
      runs: what it has of the body.
      gathered: the address of the gathered bytes.
      head: how many addresses stand before those of the body.
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
        """Puts in where the arrays of this frame are."""
        for row, array, start in self._arrays:
            self.places[row, 0] = _address(body[array]) + start


class _Plan:
    """How bodies of some sizes are sent."""

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
        """Makes room for the head of a frame, whose constant part is written."""
        self._room = max(256, 2 * header_size)
        self._head = aligned_memory(aligned(_PREFIX.size + len(self._packed_sizes) + self._room))
        self._head[:] = 0
        self._head_address = _address(self._head)
        self._head_view = memoryview(self._head)
        start = _PREFIX.size
        self._header_start = start + len(self._packed_sizes)
        self._head_view[start : self._header_start] = self._packed_sizes

    def messages(self, header: bytes, body: Sequence[NDArray[np.generic]]) -> list[_Message]:
        """What to send for a frame."""
        if len(header) > self._room:
            self._reserve(len(header))
        _PREFIX.pack_into(self._head, 0, len(header), len(self.sizes), self.end)
        stop = self._header_start + len(header)
        self._head_view[self._header_start : stop] = header
        for index, place in self._copies:
            np.copyto(place, as_bytes(body[index]))
        if self._frame is not None and stop <= SMALL_HEAD:
            # The body comes after the head, where it is aligned.
            self._frame.places[0] = (self._head_address, aligned(stop))
            self._frame.fill(body)
            return [self._frame]
        self._head_alone.places[0] = (self._head_address, stop)
        for chunk in self._chunks:
            chunk.fill(body)
        return [self._head_alone, *self._chunks]


def _runs(sizes: tuple[int, ...], offsets: Sequence[int], end: int) -> tuple[list[_Run], list[tuple[int, int]], int]:
    """A body as runs, (array, place among the gathered bytes) of each small one, and how many bytes are gathered."""
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

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._plan = _Plan(())
        self._left: deque[_Message] = deque()
        self._under_way: deque[int] = deque()
        self._held: Sequence[NDArray[np.generic]] = ()
        self.taken = 0
        """How many messages UCX has done with."""

    def load(self, header: bytes, body: Sequence[NDArray[np.generic]]) -> None:
        """The next frame. Its arrays are the outbox's until `advance` says that it has gone."""
        sizes = tuple([array.nbytes for array in body])
        if sizes != self._plan.sizes:
            self._plan = _Plan(sizes)
        self._held = body  # UCX reads them until they have gone, whatever becomes of who sends
        self._left.extend(self._plan.messages(header, body))

    def advance(self) -> bool:
        """Sends what may be sent now; whether all of the frame has gone.

        Raises:
          Broken: it cannot be sent.
        """
        while True:
            while self._left and len(self._under_way) < _WINDOW:
                message = self._left.popleft()
                if message.count == 1:
                    address, count = message.places[0].tolist()
                    request = self._pipe.send(message.kind, address, count)
                else:
                    request = self._pipe.send(message.kind, message.address, message.count, scattered=True)
                if request:
                    self._under_way.append(request)
                else:
                    self.taken += 1
            if not self._under_way:
                self._held = ()
                return True
            if not self._pipe.finished(self._under_way[0]):
                return False
            self._under_way.popleft()
            self.taken += 1


class _Memory:
    """Where a frame is received, used again for later ones."""

    def __init__(self) -> None:
        self.bytes = aligned_memory(0)
        self.address = _address(self.bytes)
        self._made_for: tuple[tuple[int, ...], int] | None = None
        self._views: tuple[Bytes, ...] = ()

    def reserve(self, size: int) -> int:
        """Makes room for this many bytes; where."""
        if size > self.bytes.size:
            # The old memory goes before the new one comes, or a growing body would need both.
            self._views, self._made_for, self.bytes = (), None, aligned_memory(0)
            self.bytes = aligned_memory(size)
            self.address = _address(self.bytes)
        return self.address

    def views(self, sizes: tuple[int, ...], start: int) -> tuple[Bytes, ...]:
        """One view for each array of a body that begins at `start`; the same objects while the sizes stay the same."""
        if self._made_for != (sizes, start):
            offsets, _ = layout(sizes)
            self._views = tuple(
                self.bytes[start + offset : start + offset + size] for offset, size in zip(offsets, sizes, strict=True)
            )
            self._made_for = (sizes, start)
        return self._views


class Inbox:
    """Receives frames, one at a time.

    The frame that was taken last keeps its memory until it is given back; another one may come into other memory
    meanwhile, but no third.

    Args:
      peer: who sends them, for messages.
    """

    def __init__(self, pipe: Pipe, peer: str) -> None:
        self._pipe = pipe
        self._peer = peer
        self._lent: _Memory | None = None
        self._spare = [_Memory()]
        self._filling: _Memory | None = None
        self._head = aligned_memory(0)
        self._coming: tuple[int, int, int] | None = None  # kind, bytes and request of what is being received
        self._chunks: deque[int] = deque()
        self._placed = self._end = self._start = 0
        self._header = b""
        self._raw_sizes, self._sizes = b"", ()  # type: tuple[bytes, tuple[int, ...]]
        self._laid_out = self._body_bytes = 0
        self.is_whole = False
        """Whether a frame can be taken."""
        self.most_bytes = LIMITS.frame_bytes
        self._parting: PeerError | None = None
        self.over: PeerError | None = None
        """Why nothing more comes."""
        self.heard = 0
        """How many messages have come."""

    @property
    def is_within(self) -> bool:
        """Whether a frame has begun, and its rest is still to come."""
        return not self.is_whole and (self._coming is not None or self._end > 0)

    @property
    def is_parted(self) -> bool:
        """Whether the other end has said that it is over, whatever of what it sent before is still to be received."""
        return self._parting is not None or self.over is not None

    def look_for_end(self) -> bool:
        """Whether it has, by now."""
        if not self.is_parted and not self._pipe.failure and (handle := self._pipe.find(Kind.END)):
            self._part(handle, self._pipe.found[1])
        return self.is_parted

    def _part(self, handle: int, length: int) -> None:
        words = aligned_memory(min(length, _MOST_WORDS))
        if length <= words.size and not self._pipe.accept(handle, _address(words), length):
            self._parting = ended(self._peer, words.tobytes().decode(errors="replace"))
        else:  # what is that short comes at once
            self._parting = ended(self._peer, "")

    def give_back(self) -> None:
        """Ends the loan of the last frame."""
        if self._lent is not None:
            self._spare.append(self._lent)
            self._lent = None

    def take(self) -> Frame:
        """The frame that `advance` has found whole."""
        self.is_whole = False
        self._lent, self._filling = self._filling, None
        views = () if self._lent is None else self._lent.views(self._sizes, self._start)
        return Frame(self._header, views)

    def advance(self) -> bool:
        """Takes what has come; whether a frame is whole, or nothing more comes.

        Raises:
          Broken: the way to the other end has broken.
        """
        while not self.is_whole and self.over is None:
            if self._coming is not None:
                kind, length, request = self._coming
                if request and not self._pipe.finished(request):
                    return False
                self._coming = None
                self._open(kind, length)
            elif not self._end:
                if not self._begin():
                    return False
            elif not self._receive_chunks():
                return False
        return True

    def _begin(self) -> bool:
        handle = self._pipe.find()
        if not handle:
            self.over = self._parting
            return self.over is not None
        self.heard += 1
        kind, length = self._pipe.found
        if kind == Kind.FRAME and length <= CHUNK_BYTES:
            self._filling = self._spare.pop() if self._spare else _Memory()
            memory = self._filling.reserve(length)
        elif kind == Kind.END:
            self._part(handle, length)
            return True
        elif kind in (Kind.HEAD, Kind.ALIVE, Kind.HELLO, Kind.WELCOME) and length <= _MOST_HEAD:
            if self._head.size < length:
                self._head = aligned_memory(length)
            memory = _address(self._head)
        else:
            self.over = ProtocolError(
                f"{self._peer} sent a message of the kind {kind} with {length:,} bytes, which cannot come here."
            )
            return True
        self._coming = kind, length, self._pipe.accept(handle, memory, length)
        return True

    def _open(self, kind: int, length: int) -> None:
        """Looks at a message that is there."""
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
        if raw_sizes != self._raw_sizes:
            sizes = struct.unpack(f"<{arrays}Q", raw_sizes)
            self._laid_out = layout(sizes)[1]
            self._body_bytes = sum(sizes)
            self._raw_sizes, self._sizes = raw_sizes, sizes
        if self._body_bytes > self.most_bytes:
            self.over = too_large(self._peer, self._body_bytes, self.most_bytes)
            return
        if end != self._laid_out:
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
        """Whether anything has come of the body."""
        assert self._filling is not None
        moved = False
        while self._placed < self._end and len(self._chunks) < _WINDOW:
            chunk = self._pipe.find(Kind.CHUNK)
            if not chunk:
                break
            moved = True
            self.heard += 1
            length = self._pipe.found[1]
            if length != min(CHUNK_BYTES, self._end - self._placed):
                self.over = ProtocolError(f"{self._peer} sent a body that is not as its frame said.")
                return True
            request = self._pipe.accept(chunk, self._filling.address + self._placed, length)
            self._placed += length
            if request:
                self._chunks.append(request)
        while self._chunks and self._pipe.finished(self._chunks[0]):
            self._chunks.popleft()
            moved = True
        if self._placed == self._end and not self._chunks:
            self._end, self.is_whole = 0, True
            return True
        if not moved and self.look_for_end():  # in the middle of a frame
            self.over = self._parting
            return True
        return moved
