"""The guard of JAX's coordination service, which admits only callers that prove that they belong to the job.

The service itself checks no secret, revocation or role. It therefore listens at a socket that only this user can
reach, and the guard listens in its place.
"""

from __future__ import annotations

import functools
import socket

from trainband.runtime import SYSTEM, Runtime
from trainband.spmd.coordinator_proxy import CONNECT_S, end, pump
from trainband.spmd.proof import COORDINATION, Proof
from trainband.spmd.sockets import Listener, Place, Socket
from trainband.spmd.strangers import Strangers


class CoordinationGuard:
    """Forwards connections to the service once the caller has proved itself.

    Args:
      listener: where the others expect the service.
      service: where the service listens.
      proof: what callers must give.
      runtime: threads.
    """

    def __init__(self, listener: Listener, service: Place, proof: Proof, runtime: Runtime = SYSTEM) -> None:
        self._listener = listener
        self._service = service
        self._proof = proof
        self._runtime = runtime
        self._lock = runtime.lock()
        self._sockets: set[Socket] = set()
        self._strangers = Strangers(runtime=runtime)
        runtime.thread(self._accept, "trainband-coordination-guard").start()

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        with self._lock:
            sockets: list[Socket | Listener] = [self._listener, *self._sockets]
        for one in sockets:
            end(one)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._strangers.add(caller)
            let_in = functools.partial(self._admit, caller)
            self._runtime.thread(let_in, "trainband-coordination-guard").start()

    def _admit(self, caller: Socket) -> None:
        with caller:
            try:
                proved = self._proof.ask(caller, COORDINATION)
            finally:
                self._strangers.remove(caller)
            if proved is None:
                return
            try:
                service = self._service.connect(CONNECT_S)
            except OSError:
                return  # it has yet to start, or has ended
            with service:
                self._pass_on(caller, service)

    def _pass_on(self, caller: Socket, service: Socket) -> None:
        """Forwards both ways until either end closes; then closes both."""
        with self._lock:
            self._sockets |= {caller, service}
        for one in (caller, service):
            one.settimeout(None)
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = self._runtime.thread(lambda: self._one_way(service, caller), "trainband-guard-back")
        back.start()
        self._one_way(caller, service)
        back.join()
        with self._lock:
            self._sockets -= {caller, service}

    @staticmethod
    def _one_way(source: Socket, target: Socket) -> None:
        pump(source, target)
        end(source)
        end(target)
