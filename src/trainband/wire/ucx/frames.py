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
from ..arena import aligned, aligned_memory, layout
from ..limits import LIMITS
from ..serving import ended, too_large
from ..transport import Bytes, Frame
from .pipe import Message, Pipe

# bytes of header, arrays, bytes of the whole body as it is laid out
_PREFIX = struct.Struct("<IIQ")

CHUNK_BYTES = 16 << 20
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


@dataclass(slots=True)
class _Plan:
    """How bodies of some sizes are sent."""

    sizes: tuple[int, ...]
    end: int
    chunks: list[list[_Run]]
    gathered: Bytes
    copies: list[tuple[int, Bytes]]
    """(array, its place in `gathered`)."""


def _plan(sizes: tuple[int, ...]) -> _Plan:
    offsets, end = layout(sizes)
    runs: list[_Run] = []
    places: list[tuple[int, int, int]] = []
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
            places.append((index, gathered + offset - begun, size))
    gather(end)
    memory = aligned_memory(gathered)
    memory[:] = 0
    copies = [(index, memory[start : start + size]) for index, start, size in places]
    return _Plan(sizes, end, _chunks(runs), memory, copies)


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
        self._plan = _plan(())
        self._head = np.zeros(0, np.uint8)
        self._left: deque[tuple[Kind, NDArray[np.uint64]]] = deque()
        self._under_way: deque[int] = deque()
        self._held: object = None
        self.taken = 0
        """How many messages UCX has done with."""

    def load(self, header: bytes, body: list[Bytes]) -> None:
        """The next frame. Its arrays are the outbox's until `advance` says that it has gone."""
        sizes = tuple(array.size for array in body)
        if sizes != self._plan.sizes:
            self._plan = _plan(sizes)
        plan = self._plan
        for index, place in plan.copies:
            np.copyto(place, body[index])
        tail = header + struct.pack(f"<{len(sizes)}Q", *sizes)
        length = _PREFIX.size + len(tail)
        whole = aligned(length)
        if self._head.size < whole:
            self._head = aligned_memory(whole)
        head = self._head
        _PREFIX.pack_into(head, 0, len(header), len(sizes), plan.end)
        head[_PREFIX.size : length] = np.frombuffer(tail, np.uint8)
        # A frame of one message has the body after the head, where it is aligned.
        bases = [_address(array) for array in body]
        gathered = _address(plan.gathered)
        lists = [
            [((gathered if run.array < 0 else bases[run.array]) + run.start, run.stop - run.start) for run in chunk]
            for chunk in plan.chunks
        ]
        self._held = body
        if len(lists) == 1 and whole + plan.end <= CHUNK_BYTES:
            self._left.append((Kind.FRAME, _addresses([(_address(head), whole), *lists[0]])))
            return
        self._left.append((Kind.HEAD, _addresses([(_address(head), length)])))
        self._left.extend((Kind.CHUNK, _addresses(one)) for one in lists)

    def advance(self) -> bool:
        """Sends what may be sent now; whether all of the frame has gone.

        Raises:
          Broken: it cannot be sent.
        """
        while True:
            while self._left and len(self._under_way) < _WINDOW:
                kind, addresses = self._left.popleft()
                if len(addresses) == 1:
                    address, count = (int(number) for number in addresses[0])
                    request = self._pipe.send(kind, address, count)
                else:
                    request = self._pipe.send(kind, _address(addresses), len(addresses), scattered=True)
                if request:
                    self._under_way.append(request)
                    self._held = (self._held, addresses)  # UCX reads the list until the message has gone
                else:
                    self.taken += 1
            if not self._under_way:
                self._held = None
                return True
            if not self._pipe.finished(self._under_way[0]):
                return False
            self._under_way.popleft()
            self.taken += 1


def _addresses(pairs: Sequence[tuple[int, int]]) -> NDArray[np.uint64]:
    return np.array(pairs, np.uint64)


class _Memory:
    """Where a frame is received, used again for later ones."""

    def __init__(self) -> None:
        self.bytes = aligned_memory(0)
        self._made_for: tuple[tuple[int, ...], int] | None = None
        self._views: tuple[Bytes, ...] = ()

    def reserve(self, size: int) -> None:
        """Makes room for this many bytes."""
        if size > self.bytes.size:
            # The old memory goes before the new one comes, or a growing body would need both.
            self._views, self._made_for, self.bytes = (), None, aligned_memory(0)
            self.bytes = aligned_memory(size)

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
        self._message: tuple[Message, int] | None = None  # the one that is received, and its request
        self._chunks: deque[int] = deque()
        self._placed = self._end = self._start = 0
        self._header = b""
        self._raw_sizes, self._sizes = b"", ()  # type: tuple[bytes, tuple[int, ...]]
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
        return not self.is_whole and (self._message is not None or self._end > 0)

    def has_ended(self) -> bool:
        """Whether the other end has said that it is over, whatever of what it sent before is still to be received."""
        if self._parting is None and self.over is None and not self._pipe.failure:
            message = self._pipe.find(Kind.END)
            if message is not None:
                self._part(message)
        return self._parting is not None or self.over is not None

    def _part(self, message: Message) -> None:
        words = aligned_memory(min(message.length, _MOST_WORDS))
        if message.length <= words.size and not self._pipe.accept(message, _address(words)):
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
            if self._message is None and not self._end:
                if not self._begin():
                    return False
            elif self._message is not None:
                message, request = self._message
                if request and not self._pipe.finished(request):
                    return False
                self._message = None
                self._open(message)
            elif not self._receive_chunks():
                return False
        return True

    def _begin(self) -> bool:
        message = self._pipe.find()
        if message is None:
            self.over = self._parting
            return self.over is not None
        self.heard += 1
        match message.kind:
            case Kind.FRAME if message.length <= CHUNK_BYTES + aligned(_PREFIX.size):
                self._filling = self._spare.pop() if self._spare else _Memory()
                self._filling.reserve(message.length)
                self._message = message, self._pipe.accept(message, _address(self._filling.bytes))
            case Kind.END:
                self._part(message)
            case Kind.HEAD | Kind.ALIVE | Kind.HELLO | Kind.WELCOME if message.length <= _MOST_HEAD:
                if self._head.size < message.length:
                    self._head = aligned_memory(message.length)
                self._message = message, self._pipe.accept(message, _address(self._head))
            case _:
                self.over = ProtocolError(
                    f"{self._peer} sent a message of the kind {message.kind} with {message.length:,} bytes, which "
                    "cannot come here."
                )
        return True

    def _open(self, message: Message) -> None:
        """Looks at a message that is there."""
        if message.kind in (Kind.FRAME, Kind.HEAD):
            memory = self._head if self._filling is None else self._filling.bytes
            try:
                self._read_head(memory[: message.length], message.kind == Kind.FRAME)
            except (struct.error, ValueError, MemoryError) as exc:
                self.over = ProtocolError(f"{self._peer} sent a frame that contradicts itself ({exc}).")

    def _read_head(self, memory: Bytes, is_frame: bool) -> None:
        header_size, arrays, end = _PREFIX.unpack_from(memory)
        stop = _PREFIX.size + header_size
        length = stop + 8 * arrays
        if length > memory.size:
            raise ValueError("lengths")
        self._header = memory[_PREFIX.size : stop].tobytes()
        raw_sizes = memory[stop:length].tobytes()
        if raw_sizes != self._raw_sizes:
            self._raw_sizes, self._sizes = raw_sizes, struct.unpack(f"<{arrays}Q", raw_sizes)
        if sum(self._sizes) > self.most_bytes:
            self.over = too_large(self._peer, sum(self._sizes), self.most_bytes)
            return
        if end != layout(self._sizes)[1]:
            raise ValueError("sizes")
        if is_frame:
            self._start = aligned(length)
            if self._start + end != memory.size:
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
            if chunk is None:
                break
            moved = True
            self.heard += 1
            if chunk.length != min(CHUNK_BYTES, self._end - self._placed):
                self.over = ProtocolError(f"{self._peer} sent a body that is not as its frame said.")
                return True
            request = self._pipe.accept(chunk, _address(self._filling.bytes) + self._placed)
            self._placed += chunk.length
            if request:
                self._chunks.append(request)
        while self._chunks and self._pipe.finished(self._chunks[0]):
            self._chunks.popleft()
            moved = True
        if self._placed == self._end and not self._chunks:
            self._end, self.is_whole = 0, True
            return True
        if not moved and self.has_ended():  # in the middle of a frame
            self.over = self._parting
            return True
        return moved
