"""Reusable memory for received frames, and the byte layout of a body."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainband.wire.frame import BODY_ALIGNMENT, Bytes


def as_bytes(array: NDArray[np.generic]) -> Bytes:
    """Returns the memory of a C-contiguous array of any dtype and rank as flat bytes, without a copy."""
    return array.reshape(-1).view(np.uint8)


def aligned(offset: int) -> int:
    """Returns `offset`, or the next multiple of `BODY_ALIGNMENT` after it."""
    return (offset + BODY_ALIGNMENT - 1) // BODY_ALIGNMENT * BODY_ALIGNMENT


def layout(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Computes the offset of each array of a body, and the size of the whole.

    Both ends of a stream use the same layout, so a body, or any range of it, takes one copy and no work per array.

    Args:
      sizes: bytes of each array.

    Returns:
      The offset of each array, all multiples of `BODY_ALIGNMENT`, and the end of the last one.
    """
    offsets = []
    end = 0
    for size in sizes:
        start = aligned(end)
        offsets.append(start)
        end = start + size
    return tuple(offsets), end


_COUNTED = 64 << 10
"""Bytes. Smaller memory is not counted by `held_bytes`."""
_held: dict[int, int] = {}


def held_bytes() -> int:
    """Returns the bytes that this process holds in memory of `aligned_memory`."""
    return sum(list(_held.values()))


def aligned_memory(capacity: int) -> Bytes:
    """Allocates `capacity` uninitialised bytes, aligned to `BODY_ALIGNMENT`.

    NumPy requests huge pages for large arrays, which makes the first use cheaper.
    """
    raw = np.empty(capacity + BODY_ALIGNMENT, np.uint8)
    if capacity >= _COUNTED:
        _held[id(raw)] = capacity
        weakref.finalize(raw, _held.pop, id(raw)).atexit = False
    skip = -raw.ctypes.data % BODY_ALIGNMENT
    return raw[skip : skip + capacity]


class Arena:
    """Memory for one body at a time.

    The arena's next body overwrites the views returned by `views`, so the body of a `Frame` is only borrowed. Memory
    that the arena has outgrown lives until its last view is gone.
    """

    def __init__(self) -> None:
        self._memory = aligned_memory(0)
        self._sizes: tuple[int, ...] | None = None
        self._views: tuple[Bytes, ...] = ()
        self._end = 0

    @property
    def memory(self) -> Bytes:
        """The bytes of the current body, laid out by `layout`."""
        return self._memory[: self._end]

    def views(self, sizes: tuple[int, ...]) -> tuple[Bytes, ...]:
        """Returns one view per size, each on a 64-byte boundary; the same objects while the sizes stay the same."""
        if sizes != self._sizes:
            offsets, end = layout(sizes)
            if end > self._memory.size:
                # Free the old memory before allocating, or a growing body would need both.
                self._views, self._memory = (), aligned_memory(0)
                self._sizes = None
                self._memory = aligned_memory(end)
            self._views = tuple(
                self._memory[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)
            )
            self._sizes, self._end = sizes, end
        return self._views
