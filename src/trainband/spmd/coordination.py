"""JAX's distributed runtime, started for one task of a cluster.

`jax.distributed.initialize` would do, but its client ends the process from C++ when another task or the service dies,
and lets nobody say whom it waits for. This starts the same service and client so that neither happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from trainband.cluster.address import Address
from trainband.cluster.certificate_files import CertificateFiles
from trainband.cluster.credentials import Credentials
from trainband.cluster.identity import Identity
from trainband.errors import ClusterError
from trainband.runtime.waiting import Say
from trainband.spmd import inside
from trainband.spmd.coordination_guard import CoordinationGuard
from trainband.spmd.coordinator_proxy import CoordinatorProxy
from trainband.spmd.rendezvous import has_ended, listening, listening_host, rendezvous

NEVER_S = 7 * 24 * 3600
"""JAX's own timeout for a silent task: ours is shorter, and ends with a message."""

CALL_S = 5
"""For one call to the service."""

CONNECT_S = 300
"""For the client to reach the service; all are there by then."""

POLL_S = 0.05

_lock = threading.Lock()
_started = ""


class Coordination:
    """The service and this task's client of it. One in a process.

    Args:
      coordinator: where the service listens, `host:port`; this task starts it if its `index` is 0.
      own_host: this machine's host, as the others reach it.
      index: which of the processes this is.
      tasks: their names.
      start_s: seconds for all to come up.
      say: where lines for people go.
      credentials: with which the tasks prove to one another who they are.

    Raises:
      ClusterError: other machines reach the service and there is no security; or this process has a runtime already,
        or JAX has started its backends without one.
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
        secret = credentials.secret
        self._index = index
        self._has_hung_up = False
        self._connections = rendezvous(address, index, tasks, start_s, say, secret)
        self._service: Any = None
        connect_to = coordinator
        if index == 0:
            with _hushed():  # it warns of `recoverable` on stderr, each time
                own = str(Address(listening_host(address), address.port))
                if secret:
                    # The service itself asks for no secret: it is reached through the guard only.
                    port = _free_port()
                    self._guard = CoordinationGuard(listening(address, tasks[0]), port, secret)
                    own = connect_to = f"127.0.0.1:{port}"
                self._service = inside.service_at(
                    own, count, heartbeat_s=NEVER_S, shutdown_s=CALL_S, certificates=certificates
                )
            # Where Python frees it, it is shut down: see `close`.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._service))
        else:
            self._proxy = CoordinatorProxy(address.host, address.port, secret)
            connect_to = self._proxy.address
        self._client = inside.client_of(
            connect_to,
            index,
            call_s=CALL_S,
            connect_s=CONNECT_S,
            shutdown_s=CALL_S,
            heartbeat_s=NEVER_S,
            certificates=certificates,
        )
        inside.take_part(self._client, self._service, index, count, coordinator, own_host)

    @property
    def lost(self) -> bool:
        """Whether the service has gone."""
        return self._proxy is not None and self._proxy.broken.is_set()

    def cut_off(self) -> frozenset[int]:
        """The processes whose connection to the chief has ended, as the chief sees it; the others see none."""
        if self._index:
            return frozenset()
        found = frozenset(index for index, one in self._connections.items() if has_ended(one))
        return found if not self._has_hung_up else frozenset()

    def set(self, key: str, value: str) -> None:
        """Sets a value that all can read."""
        self._client.key_value_set(key, value, allow_overwrite=True)

    def get(self, key: str) -> str | None:
        """The value there, if there is one."""
        try:
            return str(self._client.key_value_try_get(key))
        except jax.errors.JaxRuntimeError as exc:
            if "NOT_FOUND" in str(exc):
                return None
            raise

    def list(self, prefix: str) -> dict[str, str]:
        """All values whose keys begin so, by the rest of their keys."""
        return {key[len(prefix) :].lstrip("/"): value for key, value in self._client.key_value_dir_get(prefix)}

    def delete(self, prefix: str) -> None:
        """Deletes all values whose keys begin so."""
        self._client.key_value_delete(f"{prefix}/")

    def hang_up(self) -> None:
        """Closes this process's connections, by which the chief sees that it lives. Idempotent."""
        self._has_hung_up = True
        for one in self._connections.values():
            one.close()

    def close(self, *, well: bool) -> None:
        """Ends JAX's parts, if all is well; else they end with the process, which they would only delay.

        The service then answers nobody any more, and its connections close. Where it is shut down, as JAX would at the
        end of the process, it answers the question that each client has open, "is there an error?", with one: and that
        ends the others' processes, from C++.
        """
        inside.forget()
        if not well:
            return
        self._client.shutdown()
        if self._service is not None:
            self._service.shutdown()
        for proxy in (self._proxy, self._guard):
            if proxy is not None:
                proxy.close()


def _look_at_security(
    credentials: Credentials, chief: Address, task: str, say: Say, *, is_chief: bool
) -> CertificateFiles | None:
    """The certificates for JAX's part, where it takes any; says once what is not protected.

    Raises:
      ClusterError: other machines reach the chief, and there is no security; or the certificates cannot be used.
    """
    if not (chief.is_loopback or credentials.protect or credentials.insecure):
        raise ClusterError(
            f"the workers would meet at {chief}, where other machines reach them, without security: whoever reaches "
            "the port could take part in the job. Give all tasks the same secret (`trainband secret FILE`, and "
            "TRAINBAND_SECRET_FILE=FILE for each). On a network that nobody else reaches, TRAINBAND_INSECURE=1 does "
            "without."
        )
    if is_chief and not chief.is_loopback:
        say(
            "WARNING: gloo and NCCL carry gradients from worker to worker without encryption or authentication, "
            "whatever security the job has: keep them on a network that nobody else reaches"
        )
    if credentials.tls is None:
        return None
    if not inside.takes_certificates():
        if is_chief:
            say("WARNING: this version of JAX cannot encrypt its coordination service; JAX 0.12 can")
        return None
    return CertificateFiles.find(credentials.tls, Identity(task))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _claim(what: str) -> None:
    global _started
    with _lock:
        if _started or inside.takes_part():
            raise ClusterError(
                f"this process takes part in a job of several workers already ({_started or 'jax.distributed'}): "
                "construct one MultiWorkerMirrored or ModelParallel with a cluster in a process, and do not call "
                "jax.distributed.initialize beside it."
            )
        if inside.backends_have_started():
            raise ClusterError(
                "JAX has started its backends already, without the other workers: construct the strategy first in the "
                "program, before any jax.numpy array, jax.devices() or jax.random.key()."
            )
        _started = what


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """What C++ writes on stderr meanwhile is lost."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
