"""The bodies of a shared-memory stream: a few segments of memory at each end, used in turn."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct

import numpy as np

from trainband.wire.arena import aligned
from trainband.wire.frame import Bytes
from trainband.wire.shared_memory.segment import InSlot, OutSlot, Segment, map_received

SLOTS = 2
# While a sender waits for its receiver it also polls this often: the flag and the counter are two
# words of memory, and a processor may let each side see its own first.
_RECHECK_S = 0.01


class OutSlots:
    """The sender's side. The receiver rings `doorbell` when it gives back a body that the sender waits for."""

    def __init__(self) -> None:
        self._slots = [OutSlot() for _ in range(SLOTS)]
        self._sequence = 0
        self.doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def acquire(self, size: int, *, may_grow: bool = True) -> tuple[int, Segment, int] | None:
        """Takes a slot that no one reads; returns its number, its memory (at least `size` bytes), and its descriptor if
        that is new, else -1.

        Returns `None` while all slots are being read; without `may_grow`, also while those of this size are.
        """
        free = [slot for slot in self._slots if slot.is_free()]
        # The first that is large enough: in lockstep one slot is enough for most frames, and reusing
        # memory costs no page faults.
        for slot in free:
            if slot.segment is not None and not slot.is_below(size):
                return self._slots.index(slot), slot.segment, -1
        if not free or not (may_grow or all(slot.is_below(size) for slot in self._slots)):
            return None
        segment, descriptor = free[0].grow(size)
        return self._slots.index(free[0]), segment, descriptor

    def lend(self, number: int) -> int:
        """Marks the body in a slot as sent; returns its sequence number."""
        self._sequence += 1
        self._slots[number].sequence = self._sequence
        return self._sequence

    def wait(self, connection: socket.socket, timeout_s: float, size: int = 0) -> bool:
        """Waits until a slot of this size may be free; returns whether the other end is still there."""
        segments = [slot.segment for slot in self._slots if slot.segment is not None]
        for segment in segments:
            segment.control[1] = 1
        try:
            if any(slot.is_free() and not slot.is_below(size) for slot in self._slots):
                return True
            poll = select.poll()
            poll.register(self.doorbell, select.POLLIN)
            poll.register(connection, 0)  # POLLHUP and POLLERR are always reported
            for descriptor, _ in poll.poll(min(timeout_s, _RECHECK_S) * 1000):
                if descriptor != self.doorbell:
                    return False
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self.doorbell)
        finally:
            for segment in segments:
                segment.control[1] = 0
        return True

    def close(self) -> None:
        """Frees everything."""
        os.close(self.doorbell)
        self._slots.clear()


class InSlots:
    """The receiver's side. The last received body is borrowed until it is given back."""

    def __init__(self) -> None:
        self._slots = [InSlot() for _ in range(SLOTS)]
        self._borrowed: tuple[InSlot, int] | None = None

    def map(self, number: int, descriptors: list[int]) -> None:
        """Takes a new segment for a slot. Raises `ValueError` if it is invalid."""
        slot = self._slots[number]
        slot.replace(map_received(descriptors), os.dup(descriptors[1]))
        slot.raw_sizes, slot.sizes = b"", ()

    def borrow(self, number: int, sequence: int) -> None:
        self._borrowed = self._slots[number], sequence

    def tail(self, number: int, size: int) -> bytes:
        """Reads the header and sizes stored before a frame's body. Raises `ValueError` if they cannot be there."""
        segment = self._segment(number)
        if size > segment.body.size:
            raise ValueError("lengths")
        return segment.body[:size].tobytes()

    def sizes(self, number: int, raw_sizes: bytes) -> tuple[int, ...]:
        """Decodes the sizes of a frame's arrays; once while they stay the same."""
        slot = self._slots[number]
        if raw_sizes != slot.raw_sizes:
            slot.raw_sizes, slot.sizes = raw_sizes, struct.unpack(f"<{len(raw_sizes) // 8}Q", raw_sizes)
        return slot.sizes

    def views(self, number: int, sizes: tuple[int, ...], start: int) -> tuple[Bytes, ...]:
        """Returns the arrays of a body that begins at `start`. Raises `ValueError` if they cannot be there."""
        return self._segment(number).views(sizes, start)

    def _segment(self, number: int) -> Segment:
        segment = self._slots[number].segment
        if segment is None:
            raise ValueError("no segment")
        return segment

    def release(self) -> None:
        """Ends the loan of the last body."""
        if self._borrowed is None:
            return
        slot, sequence = self._borrowed
        self._borrowed = None
        if slot.segment is not None:
            slot.segment.control[0] = sequence
            if slot.segment.control[1]:
                with contextlib.suppress(OSError):  # it is already ringing
                    os.eventfd_write(slot.doorbell, 1)

    def close(self) -> None:
        """Gives back the last body and frees everything."""
        self.release()
        for slot in self._slots:
            slot.close()


def most_bytes_of(sizes: tuple[int, ...]) -> int:
    """Returns the largest number of bytes that a body can need."""
    return sum(map(aligned, sizes))


EMPTY = np.empty(0, np.uint8)
"""An array of a frame without a body."""
