"""The TCP connections of a Flight server. gRPC shows Python none of them, but they are this process's own."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator

from trainband.wire import port as ports

_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
_TCP_INFO = getattr(socket, "TCP_INFO", None)
_RECEIVED = struct.Struct("<Q")
_RECEIVED_OFFSET = 128
"""Of `tcpi_bytes_received` in Linux's struct tcp_info."""


def connections(port: int) -> Iterator[tuple[str, socket.socket]]:
    """The connections that came in at our `port`: who is at the other end, and the socket, for as long as it is looked
    at: shutdown(2) on any descriptor of a socket ends it.
    """
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - numbers, not paths
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):  # noqa: PTH116 - a number, not a path
                continue
            # Not socket.fromfd: told the wrong family it gives wrong addresses.
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if connection.getsockname()[1] == port:
                    host, number = connection.getpeername()[:2]
                    yield ports.join(host.removeprefix("::ffff:"), number), connection


def cut(port: int, peer: str = "") -> None:
    """Breaks the connections of our `port`, or only that with `peer`, which ends all that is blocked on them.

    Python cannot cancel a Flight call at the server. A client has one connection of its own.
    """
    for found, connection in connections(port):
        if peer in ("", found):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def received_bytes(connection: socket.socket) -> int:
    """How much has come in over a connection; 0 where the system does not tell."""
    if sys.platform != "linux" or _TCP_INFO is None:
        return 0
    info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _RECEIVED_OFFSET + _RECEIVED.size)
    if len(info) < _RECEIVED_OFFSET + _RECEIVED.size:
        return 0
    (received,) = _RECEIVED.unpack_from(info, _RECEIVED_OFFSET)
    return int(received)
