"""A proxy between this process and JAX's coordination service on another machine.

JAX's client ends its whole process, from C++, in the moment in which its connection to the service breaks. Behind a
proxy the connection stays, and the one who knows that the service is gone is this program, which can say so.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from trainband.errors import AuthenticationError
from trainband.spmd.proof import prove

CHUNK = 1 << 16
CONNECT_S = 10.0
RETRY_S = 0.02


PURPOSE = "coordination"


class CoordinatorProxy:
    """Listens on a port of this machine's own and passes everything on, both ways. A context manager.

    Args:
      host, port: of the service, or of the guard before it.
      secret: the job's, which it proves there that this task knows; empty where the job has none.
    """

    def __init__(self, host: str, port: int, secret: bytes = b"") -> None:
        self._upstream = host, port
        self._secret = secret
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._closed = False
        self.broken = threading.Event()
        """Set when the service has closed a connection, or cannot be reached."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        """Where to connect instead."""
        self._spawn(self._accept)

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        with self._lock:
            self._closed = True
            sockets = [self._listener, *self._sockets]
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _spawn(self, target: object, *args: object) -> None:
        threading.Thread(target=target, args=args, name="trainband-proxy", daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._keep(inner)
            self._spawn(self._connect, inner)

    def _connect(self, inner: socket.socket) -> None:
        outer = self._reached()
        if outer is None:
            self.broken.set()
            return  # `inner` stays open, and waits
        outer.settimeout(None)
        self._keep(outer)
        for one in (inner, outer):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._spawn(pump, inner, outer)
        if not pump(outer, inner):
            inner.close()  # it was somebody else; JAX's client tries again
        elif not self._closed:
            self.broken.set()

    def _reached(self) -> socket.socket | None:
        """A connection to the service, which may be about to start; `None` if it does not."""
        until = time.monotonic() + CONNECT_S
        while not self._closed and time.monotonic() < until:
            with contextlib.suppress(OSError):
                outer = socket.create_connection(self._upstream, timeout=CONNECT_S)
                try:
                    prove(outer, self._secret, PURPOSE, f"the coordination service at {self._upstream[0]}")
                except (OSError, AuthenticationError):  # it ends, or somebody else has its port now
                    outer.close()
                else:
                    return outer
            time.sleep(RETRY_S)
        return None

    def _keep(self, one: socket.socket) -> None:
        with self._lock:
            self._sockets.append(one)
            closed = self._closed
        if closed:
            one.close()


def pump(source: socket.socket, target: socket.socket) -> bool:
    """Passes on all that comes, until the end; whether anything came."""
    came = False
    with contextlib.suppress(OSError):  # the other end has gone, which is all there is to know
        while data := source.recv(CHUNK):
            came = True
            target.sendall(data)
    return came
