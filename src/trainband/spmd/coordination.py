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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainband.cluster.address import Address
from trainband.cluster.certificate_files import CertificateFiles
from trainband.cluster.credentials import Credentials
from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.proxies import without_proxies
from trainband.errors import ClusterError
from trainband.runtime.key_value import KeyValueStore
from trainband.runtime.waiting import Say
from trainband.spmd import jax_internals as inside
from trainband.spmd.jax_key_value import JaxKeyValueStore
from trainband.spmd.links import Links, connecting
from trainband.spmd.proof import Proof

NEVER_S = 7 * 24 * 3600
"""JAX's own timeout for a silent task: ours is shorter, and ends with a message."""

CALL_S = 5
"""Deadline for one call to the service."""

CONNECT_S = 300
"""Deadline for the client to reach the service; all tasks are up by then. JAX ends the process afterwards."""

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
        address = Address.parse(coordinator, tasks[0])
        certificates = _check_security(credentials, address, tasks[index], say, is_chief=index == 0)
        proof = Proof.of(credentials, tasks[index])
        self._links = links = Links(address, index, tasks, start_s, say, proof)
        self._service: Any = None
        if index == 0:
            with _hushed():  # it warns of `recoverable` on stderr, each time
                self._service = inside.service_at(
                    links.serve_at, count, heartbeat_s=NEVER_S, shutdown_s=CALL_S, certificates=certificates
                )
            # Python would shut it down on freeing it: see `close`.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._service))
        where = f"{tasks[0]} at {coordinator}"
        self._client = connected(links.connect_to, index, where, certificates, say, lost=lambda: links.lost)
        self.store: KeyValueStore = JaxKeyValueStore(self._client, where)
        """Holds the processes' messages."""
        self.seal, self.cut_off, self.hang_up = links.seal, links.cut_off, links.hang_up
        inside.set_distributed_state(self._client, self._service, index, count, coordinator, own_host)

    @property
    def lost(self) -> bool:
        """Whether the service has gone."""
        return self._links.lost

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
        self._links.close()


def connected(
    address: str,
    index: int,
    where: str,
    certificates: CertificateFiles | None,
    say: Say,
    *,
    connect_s: int = CONNECT_S,
    lost: Callable[[], bool] = lambda: False,
) -> Any:
    """Returns a connected client of the service at `address`. If that does not answer, the process ends.

    Args:
      address: what the client connects to, which may be a proxy of this process.
      index: which process this is.
      where: the task that runs the service, and its address.
      certificates: for JAX's part.
      say: prints lines for the user.
      connect_s: how long the service may take.
      lost: whether the service's process has gone.
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
    with connecting(where, connect_s, say, lost):
        client.connect()
    return client


def _check_security(
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
    if not inside.accepts_certificates():
        if is_chief:
            say("WARNING: this version of JAX does not encrypt its coordination service; JAX 0.12 does")
        return None
    return CertificateFiles.find(credentials.tls, Identity(task))


def _claim(what: str) -> None:
    global _started
    with _lock:
        if _started or inside.is_distributed():
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
