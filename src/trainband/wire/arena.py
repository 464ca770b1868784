"""Receive memory that is used again for the next frame, and the byte layout of a body."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .transport import BODY_ALIGNMENT, Bytes


def as_bytes(array: NDArray[np.generic]) -> Bytes:
    """The memory of a C-contiguous array, of any dtype and rank, as flat bytes, without a copy."""
    return array.reshape(-1).view(np.uint8)


def aligned(offset: int) -> int:
    """`offset`, or the next multiple of `BODY_ALIGNMENT` after it."""
    return (offset + BODY_ALIGNMENT - 1) // BODY_ALIGNMENT * BODY_ALIGNMENT


def layout(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Where each array of a body lies, and how many bytes the whole needs.

    Both ends of a stream use this one layout, so that a body, or any range of it, is one copy and needs no
    work per array.

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


def aligned_memory(capacity: int) -> Bytes:
    """`capacity` bytes, uninitialised, that start on a `BODY_ALIGNMENT` boundary.

    NumPy asks the kernel for huge pages where the array is large, which makes the first use cheaper.
    """
    raw = np.empty(capacity + BODY_ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % BODY_ALIGNMENT
    return raw[skip : skip + capacity]


class Arena:
    """Memory for one body at a time.

    The views that `views` gives are overwritten by whoever fills the arena next: this is what makes the
    body of a `Frame` borrowed. Memory that the arena has outgrown lives as long as somebody looks at it.
    """

    def __init__(self) -> None:
        self._memory = aligned_memory(0)
        self._sizes: tuple[int, ...] | None = None
        self._views: tuple[Bytes, ...] = ()
        self._end = 0

    @property
    def memory(self) -> Bytes:
        """The bytes of the current body as `layout` places them."""
        return self._memory[: self._end]

    def views(self, sizes: tuple[int, ...]) -> tuple[Bytes, ...]:
        """One view for each size, each on a 64-byte boundary; the same objects while the sizes stay the same."""
        if sizes != self._sizes:
            offsets, end = layout(sizes)
            if end > self._memory.size:
                # The old memory goes before the new one comes, or a growing body would need both.
                self._views, self._memory = (), aligned_memory(0)
                self._sizes = None
                self._memory = aligned_memory(end)
            self._views = tuple(
                self._memory[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)
            )
            self._sizes, self._end = sizes, end
        return self._views
