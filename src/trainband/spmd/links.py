"""Links: a process's connections with the others, before and beside those of JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from trainband.cluster.address import Address
from trainband.cluster.worker_group import LOST_A_PEER
from trainband.errors import DeadlineExceeded
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.waiting import Say, Waiting
from trainband.spmd.coordination_guard import CoordinationGuard
from trainband.spmd.coordinator_proxy import CoordinatorProxy
from trainband.spmd.proof import Proof
from trainband.spmd.rendezvous import has_ended, listening, listening_host, rendezvous
from trainband.spmd.sockets import SYSTEM_SOCKETS, Place, Sockets

LAST_WORDS_S = 1.0
"""How long before a client ends the process this reports what it waited for."""

POLL_S = 0.05


class Links:
    """Those of the rendezvous, which stay open, and the path to the coordination service in the chief's process.

    Args:
      chief: where the others reach the chief.
      index, tasks, start_s, say, proof, runtime, sockets: see `rendezvous`, which this waits for.

    Attributes:
      serve_at: on the chief, where the service must listen.
      connect_to: where this process's client reaches the service.
    """

    def __init__(
        self,
        chief: Address,
        index: int,
        tasks: Sequence[str],
        start_s: float,
        say: Say,
        proof: Proof,
        runtime: Runtime = SYSTEM,
        sockets: Sockets = SYSTEM_SOCKETS,
    ) -> None:
        self._index = index
        self._has_hung_up = False
        self._proxy: CoordinatorProxy | None = None
        self._guard: CoordinationGuard | None = None
        self.place: Place | None = None
        """The service's, behind the guard."""
        self._connections = rendezvous(chief, index, tasks, start_s, say, proof, runtime, sockets)
        self.serve_at = str(Address(listening_host(chief), chief.port))
        self.connect_to = str(chief)
        if index:
            self._proxy = CoordinatorProxy(chief.host, chief.port, tasks[0], proof, runtime=runtime, sockets=sockets)
            self.connect_to = self._proxy.address
        elif proof:
            self.place = sockets.private()
            self._guard = CoordinationGuard(listening(chief, tasks[0], sockets), self.place, proof, runtime)
            self.serve_at = self.connect_to = self.place.address

    def seal(self) -> None:
        """Removes the paths by which clients reach the service: all have connected, and none reconnects."""
        for part in (self._proxy, self.place):
            if part is not None:
                part.seal()

    @property
    def lost(self) -> bool:
        """Whether the service has gone."""
        return self._proxy is not None and self._proxy.broken.is_set()

    def cut_off(self) -> frozenset[int]:
        """Returns the processes whose connection to the chief has ended; empty except on the chief."""
        if self._index:
            return frozenset()
        found = frozenset(index for index, one in self._connections.items() if has_ended(one))
        return found if not self._has_hung_up else frozenset()

    def hang_up(self) -> None:
        """Closes the connections that show the chief that this process is alive. Idempotent."""
        self._has_hung_up = True
        for one in self._connections.values():
            one.close()

    def close(self) -> None:
        """Ends the path to the service. Idempotent."""
        for part in (self._proxy, self._guard):
            if part is not None:
                part.close()


@contextlib.contextmanager
def connecting(
    where: str, connect_s: float, say: Say, lost: Callable[[], bool], runtime: Runtime = SYSTEM
) -> Iterator[None]:
    """Context in which a client connects to the service: reports a wait of more than 2 s.

    The client ends the process, in C++, after `connect_s` seconds. If the service's process has gone, this does sooner.

    Args:
      where: the task that runs the service, and its address.
      connect_s: how long the service may take.
      say: prints lines for the user.
      lost: whether the service's process has gone.
      runtime: threads and time.
    """
    ended = runtime.event()

    def tell() -> None:
        waiting = Waiting(connect_s - LAST_WORDS_S, say, runtime.clock)
        advice = "check that nothing between the machines filters connections to that port"
        try:
            while not ended.wait(POLL_S):
                if lost():
                    say(f"ERROR: {where} is gone: its connection was lost before the first step. Start the job again.")
                    runtime.exit_now(LOST_A_PEER)
                waiting.check(f"JAX's coordination service of {where} to answer", advice)
        except DeadlineExceeded as exc:
            say(str(exc))  # raising here would not help: the client ends the process in a moment

    teller = runtime.thread(tell, "trainband-coordination")
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
