"""A relay, which gives the connections of any client the source port that one wants."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Self

_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: the port is free again at once


class Relay:
    """Forwards one connection after the other to an address, each of them from the same port.

    Args:
      address: of the listener, `host:port`.
      source: the port to connect from; 0 for any free one.
    """

    def __init__(self, address: str, source: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self._there = host.strip("[]"), int(port)
        self._accepting = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._accepting.getsockname()[1]}"
        self.source = source
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def connect(self) -> socket.socket:
        """A connection from the source port."""
        one = socket.socket(socket.AF_INET6 if ":" in self._there[0] else socket.AF_INET)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            one.settimeout(5.0)
            one.bind(("", self.source))
            one.connect(self._there)
        except BaseException:
            one.close()
            raise
        self.source = one.getsockname()[1]
        one.settimeout(None)
        self._open.append(one)
        return one

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._accepting.accept()
                self._open.append(near)
                try:
                    far = self.connect()
                except OSError:
                    near.close()
                    continue
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Breaks all connections."""
        with contextlib.suppress(OSError):
            self._accepting.shutdown(socket.SHUT_RDWR)
        self._accepting.close()
        self._thread.join(5.0)
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
