"""The guard before JAX's coordination service: it lets in those that know the job's secret, and nobody else.

The service itself asks for none. So it listens where this machine alone reaches it, and the guard listens in its place.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from trainband.spmd.coordinator_proxy import CONNECT_S, PURPOSE, pump
from trainband.spmd.proof import ask_proof

MOST_STRANGERS = 64
"""Connections that are being asked for a proof at a time; more are closed at once."""


class CoordinationGuard:
    """Passes on to the service what comes from those that have proved themselves.

    Args:
      listener: where the others look for the service.
      port: where the service is, on this machine's loopback interface.
      secret: the job's.
    """

    def __init__(self, listener: socket.socket, port: int, secret: bytes) -> None:
        self._listener = listener
        self._port = port
        self._secret = secret
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._asked = threading.BoundedSemaphore(MOST_STRANGERS)
        self._start(self._accept)

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        with self._lock:
            sockets = [self._listener, *self._sockets]
        for one in sockets:
            _end(one)
        self._listener.close()

    def _start(self, work: object, *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, name="trainband-coordination-guard", daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self._asked.acquire(blocking=False):
                self._start(self._let_in, caller)
            else:
                caller.close()

    def _let_in(self, caller: socket.socket) -> None:
        with caller:
            try:
                proved = ask_proof(caller, self._secret, PURPOSE)
            finally:
                self._asked.release()
            if not proved:
                return
            try:
                service = socket.create_connection(("127.0.0.1", self._port), timeout=CONNECT_S)
            except OSError:
                return  # it has ended
            with service:
                self._pass_on(caller, service)

    def _pass_on(self, caller: socket.socket, service: socket.socket) -> None:
        """Both ways, until either end closes; then both do."""
        with self._lock:
            self._sockets |= {caller, service}
        for one in (caller, service):
            one.settimeout(None)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=self._one_way, args=(service, caller), name="trainband-guard-back", daemon=True)
        back.start()
        self._one_way(caller, service)
        back.join()
        with self._lock:
            self._sockets -= {caller, service}

    @staticmethod
    def _one_way(source: socket.socket, target: socket.socket) -> None:
        pump(source, target)
        _end(source)
        _end(target)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
