"""A proxy between this process and JAX's coordination service on another machine.

JAX's client ends its whole process, from C++, as soon as its connection to the service breaks. Behind a proxy the
connection stays open, and this program learns that the service has gone and can report it.

The proxy gives this task's proof to the service's guard. It therefore listens at a socket that only this user can
reach.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable

from trainband.errors import AuthenticationError
from trainband.runtime import SYSTEM, Runtime
from trainband.spmd.proof import COORDINATION, Proof
from trainband.spmd.sockets import SYSTEM_SOCKETS, Listener, Socket, Sockets

CHUNK = 1 << 16
CONNECT_S = 10.0
RETRY_S = 0.02


class CoordinatorProxy:
    """Forwards everything, both ways, from a socket that only this user can reach.

    Args:
      host, port: of the service, or of its guard.
      chief: the task there.
      proof: what this task gives there.
      runtime, sockets: threads, time and network.
    """

    def __init__(
        self,
        host: str,
        port: int,
        chief: str,
        proof: Proof,
        *,
        runtime: Runtime = SYSTEM,
        sockets: Sockets = SYSTEM_SOCKETS,
    ) -> None:
        self._upstream = host, port
        self._chief = chief
        self._proof = proof
        self._runtime = runtime
        self._network = sockets
        self._sockets: list[Socket] = []
        self._lock = runtime.lock()
        self._closed = False
        self.broken = runtime.event()
        """Set when the service has closed a connection, or cannot be reached."""
        self._place = sockets.private()
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
            sockets: list[Socket | Listener] = [self._listener, *self._sockets]
        for one in sockets:
            end(one)
            one.close()

    def _spawn(self, work: Callable[[], object]) -> None:
        self._runtime.thread(work, "trainband-proxy").start()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._register(inner)
            self._spawn(functools.partial(self._connect, inner))

    def _connect(self, inner: Socket) -> None:
        outer = self._reached()
        if outer is None:
            self.broken.set()
            return  # `inner` stays open, and waits
        outer.settimeout(None)
        self._register(outer)
        outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._spawn(lambda: pump(inner, outer))
        if not pump(outer, inner):
            end(inner)  # it was another program, or the service has yet to start; JAX's client tries again
            inner.close()
        elif not self._closed:
            self.broken.set()

    def _reached(self) -> Socket | None:
        """Connects to the service, which may be about to start; `None` if it does not."""
        until = self._runtime.clock() + CONNECT_S
        while not self._closed and self._runtime.clock() < until:
            with contextlib.suppress(OSError):
                where = f"the coordination service at {self._upstream[0]}"
                outer = self._network.connect(*self._upstream, CONNECT_S)
                try:
                    self._proof.present(outer, COORDINATION, self._chief, where)
                except (OSError, AuthenticationError):  # it is ending, or another program has its port now
                    outer.close()
                else:
                    return outer
            self._runtime.sleep(RETRY_S)
        return None

    def _register(self, one: Socket) -> None:
        with self._lock:
            self._sockets.append(one)
            closed = self._closed
        if closed:
            one.close()


def pump(source: Socket, target: Socket) -> bool:
    """Forwards everything until the end; returns whether anything came."""
    came = False
    with contextlib.suppress(OSError):  # the other end has gone
        while data := source.recv(CHUNK):
            came = True
            target.sendall(data)
    return came


def end(one: Socket | Listener) -> None:
    """Ends a connection. `close` alone would not while another thread waits to receive from it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
