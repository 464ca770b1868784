"""Frame: one message of a stream.

A frame is a header and a body. The header is an encoded record of `messages/`, the body raw arrays. On every network
transport, a frame consists of these four parts, all numbers little-endian:

    +--------+----------+-------------+-----------+-----+-----------+-----+------- - -
    | prefix | header   | sizes       | array 0   | gap | array 1   | gap | array 2
    +--------+----------+-------------+-----------+-----+-----------+-----+------- - -
     fixed    H bytes    A x uint64    sizes[0]          sizes[1]
                                      |<-- body: each array at a multiple of 64 bytes from its start

The prefix has the kind of the message, H, A and fields of the transport's own; only the two ends of one stream
read it. `sizes` are the bytes of each array. Both ends lay out the body with `arena.layout`, so any range of it is one
copy, and JAX on the CPU uses the receiver's memory without copying it. Shapes and types are not sent: they follow from
the header and from earlier agreement.

Other messages have only a prefix, or a prefix and a text: a keepalive, the end of the stream and its reason, and the
opening of a stream. `flight/frames.py`, `shared_memory/stream.py` and `ucx/frames.py` describe how each transport
splits a frame; within a process (`memory/`) nothing is encoded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
"""Raw bytes as a one-dimensional uint8 array."""

BODY_ALIGNMENT = 64
"""Bytes. Each array of a body starts on such a boundary at the receiver, because JAX on the CPU uses
memory with this alignment in place and copies any other."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of a stream.

    Attributes:
      header: the encoded record that describes this frame.
      body: raw bytes of each array in it, 64-byte aligned. BORROWED: the next `receive` on the same stream
        overwrites them, so copy them to keep them.
    """

    header: bytes
    body: tuple[Bytes, ...] = ()
