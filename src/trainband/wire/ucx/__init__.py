"""Streams over UCX (openucx.org): RDMA where the network has it, TCP and shared memory elsewhere.

`library.py` is UCX's C interface, `context.py` UCX in this process, `pipe.py` one stream's worker and endpoint and how
threads wait, `frames.py` frames as UCX's messages, `stream.py` the stream, `door.py` how one comes about.
"""

from __future__ import annotations

from .context import UcxContext, is_installed, ucx
from .door import OPEN, StreamPulse, UcxDoor, no_door, open_ucx_stream
from .library import has_rdma
from .stream import UcxStream

__all__ = [
    "OPEN",
    "StreamPulse",
    "UcxContext",
    "UcxDoor",
    "UcxStream",
    "has_rdma",
    "is_installed",
    "no_door",
    "open_ucx_stream",
    "ucx",
]
