"""Streams over UCX (openucx.org): RDMA if the network has it, TCP and shared memory elsewhere.

`library.py` is UCX's C interface, `context.py` UCX in this process, `endpoint.py` one stream's worker and endpoint and
the waiting of its threads, `frames.py` frames as UCX messages, `stream.py` the stream, `listener.py` its opening.
"""

from __future__ import annotations

from trainband.wire.ucx.context import UcxContext, is_installed, ucx
from trainband.wire.ucx.library import has_rdma
from trainband.wire.ucx.listener import OPEN, StreamTicker, UcxListener, not_served, open_ucx_stream
from trainband.wire.ucx.stream import UcxStream

__all__ = [
    "OPEN",
    "StreamTicker",
    "UcxContext",
    "UcxListener",
    "UcxStream",
    "has_rdma",
    "is_installed",
    "not_served",
    "open_ucx_stream",
    "ucx",
]
