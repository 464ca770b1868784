"""Memory shared by two processes: written by the sender of a stream, read in place by the receiver."""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

import numpy as np

from trainband.wire.arena import layout
from trainband.wire.frame import BODY_ALIGNMENT, Bytes

_CONTROL_BYTES = mmap.PAGESIZE
_LEAST_SEGMENT = 256 << 10


class Segment:
    """A piece of shared memory, which one end writes and the other reads.

    The first page holds two words: the sequence number of the last body that the receiver has released,
    written by the receiver, and whether the sender is waiting for it, written by the sender.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size)
        self.control = np.frombuffer(self._map, np.uint64, 2)
        self.body: Bytes = np.frombuffer(self._map, np.uint8, size - _CONTROL_BYTES, _CONTROL_BYTES)
        self._sizes: tuple[int, ...] | None = None
        self._views: tuple[Bytes, ...] = ()

    def views(self, sizes: tuple[int, ...], start: int = 0) -> tuple[Bytes, ...]:
        """Returns one view for each array of a body; the same objects while the sizes stay the same."""
        if sizes != self._sizes or start:
            offsets, end = layout(sizes)
            if start + end > self.body.size:
                raise ValueError("the body does not fit into its segment")
            views = tuple(
                self.body[start + offset : start + offset + size] for offset, size in zip(offsets, sizes, strict=True)
            )
            if start:
                return views
            self._sizes, self._views = sizes, views
        return self._views

    def trim_cache(self) -> None:
        """Drops the views, so that the memory is freed with its last reader."""
        self._sizes, self._views = None, ()


class OutSlot:
    """One of the places into which a sender copies bodies, in turn."""

    def __init__(self) -> None:
        self.segment: Segment | None = None
        self.sequence = 0

    def is_free(self) -> bool:
        """Whether its last body was given back."""
        return self.segment is None or int(self.segment.control[0]) == self.sequence

    def is_below(self, size: int) -> bool:
        """Whether it has less memory than that."""
        return (0 if self.segment is None else self.segment.body.size) < size

    def grow(self, size: int) -> tuple[Segment, int]:
        """Creates a segment of at least `size` bytes; also returns its descriptor, which the caller closes."""
        if self.segment is not None:
            self.segment.trim_cache()
            self.segment = None
        size = -(-max(size, _LEAST_SEGMENT) // mmap.PAGESIZE) * mmap.PAGESIZE + _CONTROL_BYTES
        descriptor = os.memfd_create("trainband", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            # If the memory it maps became shorter, SIGBUS would kill the other end.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            segment = Segment(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        segment.control[0] = self.sequence
        self.segment = segment
        return segment, descriptor


class InSlot:
    """The receiver's side of a slot."""

    def __init__(self) -> None:
        self.segment: Segment | None = None
        self.raw_sizes = b""
        self.sizes: tuple[int, ...] = ()
        self.doorbell = -1

    def replace(self, segment: Segment, doorbell: int) -> None:
        """Takes a new segment and the eventfd that wakes its sender."""
        self.close()
        self.segment, self.doorbell = segment, doorbell

    def close(self) -> None:
        """Drops both."""
        if self.segment is not None:
            self.segment.trim_cache()
            self.segment = None
        if self.doorbell >= 0:
            os.close(self.doorbell)
            self.doorbell = -1


def map_received(descriptors: list[int]) -> Segment:
    """Maps the segment that came with a frame; its descriptor stays the caller's.

    Raises:
      ValueError: it is not a valid segment.
    """
    if len(descriptors) != 2:
        raise ValueError("descriptors")
    descriptor, doorbell = descriptors
    # Writing to any other kind of file, or to a blocking one, could block the thread that gives a body back.
    if str(Path(f"/proc/self/fd/{doorbell}").readlink()) != "anon_inode:[eventfd]" or os.get_blocking(doorbell):
        raise ValueError("doorbell")
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("unsealed segment")
    size = os.fstat(descriptor).st_size
    if size < _CONTROL_BYTES + BODY_ALIGNMENT or size % mmap.PAGESIZE:
        raise ValueError("segment")
    return Segment(descriptor, size)
