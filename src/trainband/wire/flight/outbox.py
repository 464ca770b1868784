"""Splits a body into Flight messages without copying it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from trainband.wire.arena import Arena, layout
from trainband.wire.flight.columns import CHUNK_BYTES
from trainband.wire.frame import Bytes

BODY_SCHEMA = pa.schema([pa.field("body", pa.uint8(), nullable=False)])

# Smaller arrays are gathered in one message: a message costs about 40 us of both sides' time, a copy of this much 25.
_GATHER_BELOW = 512 << 10


@dataclass(frozen=True, slots=True)
class Piece:
    """One message's part of a body: a range of one large array, or several small arrays in a row."""

    offset: int
    first: int
    sizes: tuple[int, ...] = ()  # of the gathered arrays `first`, `first + 1`, ...
    start: int = 0  # else the range of array `first`
    stop: int = 0


def _pieces(sizes: tuple[int, ...]) -> list[Piece]:
    offsets, _ = layout(sizes)
    pieces: list[Piece] = []
    gathered: list[int] = []

    def flush() -> None:
        if gathered and any(sizes[index] for index in gathered):
            first = gathered[0]
            pieces.append(Piece(offsets[first], first, tuple(sizes[index] for index in gathered)))
        gathered.clear()

    for index, size in enumerate(sizes):
        if size >= _GATHER_BELOW:
            flush()
            for start in range(0, size, CHUNK_BYTES):
                pieces.append(Piece(offsets[index] + start, index, (), start, min(start + CHUNK_BYTES, size)))
            continue
        if gathered and offsets[index] + size - offsets[gathered[0]] > CHUNK_BYTES:
            flush()
        gathered.append(index)
    flush()
    return pieces


class Outbox:
    """Turns bodies into record batches and tracks when gRPC releases the memory."""

    def __init__(self) -> None:
        self._sizes: tuple[int, ...] = ()
        self._pieces: list[Piece] = []
        self._staging: list[tuple[Arena, weakref.ref[Bytes] | None]] = []

    def pieces(self, sizes: tuple[int, ...]) -> list[Piece]:
        """Splits a body of these sizes; computed once while the sizes stay the same."""
        if sizes != self._sizes:
            self._sizes, self._pieces = sizes, _pieces(sizes)
        return self._pieces

    def gather(self, piece: Piece, body: Sequence[Bytes]) -> pa.Buffer:
        """Copies small arrays, in the receiver's layout, into memory that gRPC has released."""
        for index, (arena, user) in enumerate(self._staging):  # noqa: B007 - index is used after the loop
            if user is None or user() is None:
                break
        else:
            arena = Arena()
            index = len(self._staging)
            self._staging.append((arena, None))
        views = arena.views(piece.sizes)
        for view, array in zip(views, body[piece.first : piece.first + len(views)], strict=True):
            view[...] = array
        memory = arena.memory[:]
        self._staging[index] = (arena, weakref.ref(memory))
        return pa.py_buffer(memory)


def batch_of(buffer: pa.Buffer) -> pa.RecordBatch:
    """Wraps the bytes in a record batch of `BODY_SCHEMA`."""
    column = pa.Array.from_buffers(pa.uint8(), buffer.size, [None, buffer], null_count=0)
    return pa.RecordBatch.from_arrays([column], schema=BODY_SCHEMA)
