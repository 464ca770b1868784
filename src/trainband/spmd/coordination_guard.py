"""The guard of JAX's coordination service, which admits only callers that prove that they belong to the job.

The service itself checks no secret, revocation or role. It therefore listens at a socket that only this user can
reach, and the guard listens in its place.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from trainband.spmd.coordinator_proxy import CONNECT_S, PURPOSE, pump
from trainband.spmd.proof import Proof
from trainband.spmd.strangers import Strangers


class CoordinationGuard:
    """Forwards connections to the service once the caller has proved itself.

    Args:
      listener: where the others expect the service.
      service: the path of the service's socket.
      proof: what callers must give.
    """

    def __init__(self, listener: socket.socket, service: Path, proof: Proof) -> None:
        self._listener = listener
        self._service = service
        self._proof = proof
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._strangers = Strangers()
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
            self._strangers.add(caller)
            self._start(self._let_in, caller)

    def _let_in(self, caller: socket.socket) -> None:
        with caller:
            try:
                proved = self._proof.ask(caller, PURPOSE)
            finally:
                self._strangers.remove(caller)
            if proved is None:
                return
            with socket.socket(socket.AF_UNIX) as service:
                service.settimeout(CONNECT_S)
                try:
                    service.connect(str(self._service))
                except OSError:
                    return  # it has ended
                self._pass_on(caller, service)

    def _pass_on(self, caller: socket.socket, service: socket.socket) -> None:
        """Forwards both ways until either end closes; then closes both."""
        with self._lock:
            self._sockets |= {caller, service}
        for one in (caller, service):
            one.settimeout(None)
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
