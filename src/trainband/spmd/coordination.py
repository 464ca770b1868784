"""JAX's distributed runtime, started for one task of a cluster.

`jax.distributed.initialize` would do, but its client ends the process from C++ when another task or the service dies,
and does not report what it waits for. This starts the same service and client without these defects.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainband.cluster.address import Address
from trainband.cluster.certificate_files import CertificateFiles
from trainband.cluster.credentials import Credentials
from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.proxies import without_proxies
from trainband.errors import ClusterError, DeadlineExceeded
from trainband.runtime.key_value import KeyValueStore
from trainband.runtime.waiting import Say, Waiting
from trainband.spmd import jax_internals as inside
from trainband.spmd.coordination_guard import CoordinationGuard
from trainband.spmd.coordinator_proxy import CoordinatorProxy
from trainband.spmd.jax_key_value import JaxKeyValueStore
from trainband.spmd.private_socket import PrivateSocket
from trainband.spmd.proof import Proof
from trainband.spmd.rendezvous import has_ended, listening, listening_host, rendezvous

NEVER_S = 7 * 24 * 3600
"""JAX's own timeout for a silent task: ours is shorter, and ends with a message."""

CALL_S = 5
"""For one call to the service."""

CONNECT_S = 300
"""For the client to reach the service; all tasks are up by then. JAX ends the process afterwards."""

LAST_WORDS_S = 1.0
"""How long before that this process reports what it waited for."""

POLL_S = 0.05

_lock = threading.Lock()
_started = ""


class Coordination:
    """The service and this task's client. One per process.

    Args:
      coordinator: where the service listens, `host:port`; this task starts it if its `index` is 0.
      own_host: this machine's host, as the others reach it.
      index: of this process.
      tasks: their names.
      start_s: seconds for all to come up.
      say: prints lines for the user.
      credentials: by which the tasks prove their identity to one another.

    Raises:
      ClusterError: other machines can reach the service and there is no security; or this process already has a
        runtime, or JAX has started its backends without one.
      AddressInUse, AuthenticationError, DeadlineExceeded, Refused, Unreachable: see `rendezvous`.
    """

    def __init__(
        self,
        coordinator: str,
        own_host: str,
        index: int,
        tasks: Sequence[str],
        *,
        start_s: float,
        say: Say,
        credentials: Credentials,
    ) -> None:
        _claim(f"as {tasks[index]}")
        count = len(tasks)
        self._proxy: CoordinatorProxy | None = None
        self._guard: CoordinationGuard | None = None
        address = Address.parse(coordinator, tasks[0])
        certificates = _look_at_security(credentials, address, tasks[index], say, is_chief=index == 0)
        proof = Proof.of(credentials, tasks[index])
        self._index = index
        self._has_hung_up = False
        self._connections = rendezvous(address, index, tasks, start_s, say, proof)
        self._service: Any = None
        self._place: PrivateSocket | None = None
        connect_to = coordinator
        if index == 0:
            with _hushed():  # it warns of `recoverable` on stderr, each time
                own = str(Address(listening_host(address), address.port))
                if proof:
                    self._place = PrivateSocket()
                    self._guard = CoordinationGuard(listening(address, tasks[0]), self._place.path, proof)
                    own = connect_to = self._place.address
                self._service = inside.service_at(
                    own, count, heartbeat_s=NEVER_S, shutdown_s=CALL_S, certificates=certificates
                )
            # Python would shut it down on freeing it: see `close`.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._service))
        else:
            self._proxy = CoordinatorProxy(address.host, address.port, tasks[0], proof)
            connect_to = self._proxy.address
        where = f"{tasks[0]} at {coordinator}"
        self._client = connected(connect_to, index, where, certificates, say)
        self.store: KeyValueStore = JaxKeyValueStore(self._client, where)
        """Holds the processes' messages."""
        inside.take_part(self._client, self._service, index, count, coordinator, own_host)

    def seal(self) -> None:
        """Removes the paths by which JAX's clients reach the service: all have connected, and none reconnects."""
        for part in (self._proxy, self._place):
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

    def close(self, *, well: bool) -> None:
        """Ends JAX's parts if all is well; else they end with the process, which they would only delay.

        In that case the service just stops answering, and its connections close. If it were shut down, as JAX does at
        exit, it would answer each client's pending question, "is there an error?", with one, and that ends the other
        processes from C++.
        """
        inside.forget()
        if not well:
            return
        self._client.shutdown()
        if self._service is not None:
            self._service.shutdown()
        for part in (self._proxy, self._guard):
            if part is not None:
                part.close()


def connected(
    address: str,
    index: int,
    where: str,
    certificates: CertificateFiles | None,
    say: Say,
    *,
    connect_s: int = CONNECT_S,
) -> Any:
    """Returns a connected client of the service at `address`.

    Reports a wait of more than 2 s. If the service does not answer in `connect_s`, JAX ends the process.

    Args:
      address: what the client connects to, which may be a proxy of this process.
      index: which process this is.
      where: the task that runs the service, and its address.
      certificates: for JAX's part.
      say: prints lines for the user.
      connect_s: how long the service may take.
    """
    with without_proxies():
        client = inside.client_of(
            address,
            index,
            call_s=CALL_S,
            connect_s=connect_s,
            shutdown_s=CALL_S,
            heartbeat_s=NEVER_S,
            certificates=certificates,
        )
    ended = threading.Event()

    def tell() -> None:
        waiting = Waiting(connect_s - LAST_WORDS_S, say)
        advice = "check that nothing between the machines filters connections to that port"
        try:
            while not ended.wait(POLL_S):
                waiting.check(f"JAX's coordination service of {where} to answer", advice)
        except DeadlineExceeded as exc:
            say(str(exc))  # raising here would not help: JAX ends the process from C++ in a moment

    teller = threading.Thread(target=tell, name="trainband-coordination", daemon=True)
    teller.start()
    try:
        client.connect()
    finally:
        ended.set()
        teller.join()
    return client


def _look_at_security(
    credentials: Credentials, chief: Address, task: str, say: Say, *, is_chief: bool
) -> CertificateFiles | None:
    """Returns the certificates for JAX's part, if it takes any; warns once of what is not protected.

    Raises:
      ClusterError: other machines can reach the chief and there is no security; or the certificates are unusable.
    """
    if not (chief.is_loopback or credentials.protect or credentials.insecure):
        raise ClusterError(
            f"the workers would meet at {chief}, which other machines can reach, without security: any program that "
            "reaches the port could join the job. Give all tasks the same secret (`trainband secret FILE`, and "
            "TRAINBAND_SECRET_FILE=FILE for each). On a private network, TRAINBAND_INSECURE=1 does without."
        )
    if is_chief and not chief.is_loopback:
        say(
            "WARNING: gloo and NCCL carry gradients from worker to worker without encryption or authentication, "
            "whatever security the job has: keep them on a private network"
        )
    if credentials.tls is None:
        return None
    if not inside.takes_certificates():
        if is_chief:
            say("WARNING: this version of JAX does not encrypt its coordination service; JAX 0.12 does")
        return None
    return CertificateFiles.find(credentials.tls, Identity(task))


def _claim(what: str) -> None:
    global _started
    with _lock:
        if _started or inside.takes_part():
            raise ClusterError(
                f"this process already takes part in a job of several workers ({_started or 'jax.distributed'}): "
                "construct only one MultiWorkerMirrored or ModelParallel with a cluster per process, and do not call "
                "jax.distributed.initialize."
            )
        if inside.backends_have_started():
            raise ClusterError(
                "JAX has already started its backends, without the other workers: construct the strategy first in the "
                "program, before any jax.numpy array, jax.devices() or jax.random.key()."
            )
        _started = what


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Discards what C++ writes to stderr."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
