"""A proxy between this process and JAX's coordination service on another machine.

JAX's client ends its whole process, from C++, as soon as its connection to the service breaks. Behind a proxy the
connection stays open, and this program learns that the service has gone and can report it.

The proxy gives this task's proof to the service's guard. It therefore listens at a socket that only this user can
reach.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from trainband.errors import AuthenticationError
from trainband.spmd.private_socket import PrivateSocket
from trainband.spmd.proof import Proof

CHUNK = 1 << 16
CONNECT_S = 10.0
RETRY_S = 0.02


PURPOSE = "coordination"


class CoordinatorProxy:
    """Forwards everything, both ways, from a socket that only this user can reach.

    Args:
      host, port: of the service, or of its guard.
      chief: the task there.
      proof: what this task gives there.
    """

    def __init__(self, host: str, port: int, chief: str, proof: Proof) -> None:
        self._upstream = host, port
        self._chief = chief
        self._proof = proof
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._closed = False
        self.broken = threading.Event()
        """Set when the service has closed a connection, or cannot be reached."""
        self._place = PrivateSocket()
        self.address = self._place.address
        """Where to connect instead."""
        self._listener = self._place.listen()
        self._spawn(self._accept)

    def seal(self) -> None:
        """Stops taking connections. Idempotent."""
        self._place.seal()

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        self.seal()
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
        outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._spawn(pump, inner, outer)
        if not pump(outer, inner):
            inner.close()  # it was another program; JAX's client tries again
        elif not self._closed:
            self.broken.set()

    def _reached(self) -> socket.socket | None:
        """Connects to the service, which may be about to start; `None` if it does not."""
        until = time.monotonic() + CONNECT_S
        while not self._closed and time.monotonic() < until:
            with contextlib.suppress(OSError):
                outer = socket.create_connection(self._upstream, timeout=CONNECT_S)
                try:
                    self._proof.give(outer, PURPOSE, self._chief, f"the coordination service at {self._upstream[0]}")
                except (OSError, AuthenticationError):  # it is ending, or another program has its port now
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
    """Forwards everything until the end; returns whether anything came."""
    came = False
    with contextlib.suppress(OSError):  # the other end has gone
        while data := source.recv(CHUNK):
            came = True
            target.sendall(data)
    return came
