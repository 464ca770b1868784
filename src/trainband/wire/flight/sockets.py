"""The TCP connections of a Flight server. gRPC hides them from Python, but they are this process's own."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from trainband.runtime.hosts import with_port

_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
_TCP_INFO = getattr(socket, "TCP_INFO", None)
_RECEIVED = struct.Struct("<Q")
_RECEIVED_OFFSET = 128
"""Offset of `tcpi_bytes_received` in Linux's struct tcp_info."""


class ConnectionKey(NamedTuple):
    """One connection. Its address alone is ambiguous: another process can use the port after it has ended, or at the
    same time towards another address of this machine.
    """

    peer: str
    """`host:port` of the other end."""
    inode: int
    """Inode of our socket: unique while the socket is open."""


def connections(port: int) -> Iterator[tuple[ConnectionKey, socket.socket]]:
    """Yields the incoming connections of our `port`, each with its socket during its iteration: shutdown(2) on
    any descriptor of a socket ends it.
    """
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - numbers, not paths
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):  # noqa: PTH116 - a number, not a path
                continue
            # Not socket.fromfd: with the wrong family it returns wrong addresses.
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if connection.getsockname()[1] == port:
                    host, number = connection.getpeername()[:2]
                    inode = os.fstat(connection.fileno()).st_ino
                    yield ConnectionKey(with_port(host.removeprefix("::ffff:"), number), inode), connection


def cut(port: int, peer: str = "") -> None:
    """Breaks the connections of our `port`, or only that with `peer`, which ends all calls blocked on them.

    Python cannot cancel a Flight call at the server. A client has its own connection. If another process has since
    taken its address, that process's connection breaks, and it can reconnect.
    """
    for key, connection in connections(port):
        if peer in ("", key.peer):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def received_bytes(connection: socket.socket) -> int:
    """Returns the bytes received over a connection; 0 if the system does not report them."""
    if sys.platform != "linux" or _TCP_INFO is None:
        return 0
    info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _RECEIVED_OFFSET + _RECEIVED.size)
    if len(info) < _RECEIVED_OFFSET + _RECEIVED.size:
        return 0
    (received,) = _RECEIVED.unpack_from(info, _RECEIVED_OFFSET)
    return int(received)
