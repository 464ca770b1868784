"""The transport that tasks use: shared memory within a machine, Arrow Flight between machines."""

from __future__ import annotations

import threading
import time

from ..cluster.credentials import Credentials
from ..cluster.identity import OBSERVER, Identity
from ..cluster.resolvers.credentials import MEANING, resolve_credentials
from ..errors import ClusterError, Unreachable
from ..runtime.waiting import Say, say_on_stderr
from . import port as ports
from .flight import ConnectionLimits, FlightConnection, FlightListener
from .local import LocalStream, is_supported
from .local_door import LocalDoor, open_local_stream
from .security import Security
from .transport import Connection, Handler, Listener, Stream, Timeouts


class _NetworkListener:
    """A Flight listener, and a door for the tasks on this machine."""

    def __init__(
        self,
        address: str,
        handler: Handler,
        timeouts: Timeouts,
        shared_memory: bool,
        security: Security,
        limits: ConnectionLimits,
        say: Say,
    ) -> None:
        self._door = LocalDoor(handler, timeouts) if shared_memory else None
        door = self._door.name if self._door is not None else ""
        try:
            self._flight = FlightListener(address, handler, timeouts, door, security=security, limits=limits, say=say)
        except BaseException:
            if self._door is not None:
                self._door.stop(timeouts.grace_s)
            raise
        if self._door is not None:
            self._door.address = self._flight.address
            self._door.caller_of = self._flight.caller_of

    @property
    def address(self) -> str:
        return self._flight.address

    def stop(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        if self._door is None:
            self._flight.stop(grace_s)
            return
        # Both at once: they share the grace period.
        door = threading.Thread(target=self._door.stop, args=(grace_s,), name="trainband-stop-local", daemon=True)
        door.start()
        self._flight.stop(grace_s)
        door.join(max(0.0, deadline - time.monotonic()))


class _NetworkConnection:
    """A Flight connection whose streams use shared memory where the listener is on this machine."""

    def __init__(self, address: str, timeouts: Timeouts, shared_memory: bool, security: Security) -> None:
        self._flight = FlightConnection(address, timeouts, security)
        self._timeouts = timeouts
        self._shared_memory = shared_memory
        self._lock = threading.Lock()
        self._local: set[LocalStream] = set()

    @property
    def address(self) -> str:
        return self._flight.address

    def call(self, action: str, body: bytes = b"", *, timeout_s: float) -> bytes:
        return self._flight.call(action, body, timeout_s=timeout_s)

    def open_stream(self, *, timeout_s: float) -> Stream:
        deadline = time.monotonic() + timeout_s
        if self._shared_memory:
            # Asked each time: a task that was restarted has another door.
            name = self._flight.door(timeout_s=timeout_s).door
            if name:
                try:
                    return self._open_local(name, max(0.001, deadline - time.monotonic()))
                except Unreachable:
                    pass  # another machine, container or user: the network reaches it
        return self._flight.open_stream(timeout_s=max(0.001, deadline - time.monotonic()))

    def _open_local(self, name: str, timeout_s: float) -> Stream:
        ticket = self._flight.ticket(timeout_s=timeout_s)
        stream = open_local_stream(name, self.address, self._timeouts, timeout_s, self._forget, ticket)
        with self._lock:
            self._local.add(stream)
        return stream

    def _forget(self, stream: LocalStream) -> None:
        with self._lock:
            self._local.discard(stream)

    def close(self) -> None:
        with self._lock:
            local = list(self._local)
        for stream in local:
            stream.close()
        self._flight.close()


class Network:
    """Carries calls over Arrow Flight, and streams over shared memory where both ends are on one machine.

    Args:
      shared_memory: `False` sends everything over the network, also within the machine. macOS always does.
      credentials: with which both ends prove who they are; those that the environment gives where `None`.
      identity: as whom this one speaks.
      limits: what a listener lets its peers take.
      say: where it says whom it has refused.

    Raises:
      ClusterError: the credentials cannot be used.
    """

    def __init__(
        self,
        shared_memory: bool = True,
        *,
        credentials: Credentials | None = None,
        identity: Identity = OBSERVER,
        limits: ConnectionLimits | None = None,
        say: Say = say_on_stderr,
    ) -> None:
        self._shared_memory = shared_memory and is_supported()
        self._credentials = resolve_credentials() if credentials is None else credentials
        self._identity = identity
        self._limits = limits or ConnectionLimits()
        self._say = say

    def listen(self, address: str, handler: Handler, timeouts: Timeouts) -> Listener:
        ports.check(address)
        if not (self._credentials.protect or self._credentials.insecure or ports.is_loopback(address)):
            raise ClusterError(
                f"{self._identity.name} would serve at {address}, where other machines reach it, without security: "
                "whoever reaches the port could read the model and take over the job. Give all tasks of the job a "
                "secret (`trainband secret FILE`, and TRAINBAND_SECRET_FILE=FILE for each task) or certificates "
                "(`trainband certs`, TRAINBAND_TLS). On a network that nobody else reaches, TRAINBAND_INSECURE=1 (with "
                "trainband run: --insecure) does without."
            )
        if self._credentials.insecure and not ports.is_loopback(address):
            self._say(f"WARNING: {self._identity.name} at {address}: {MEANING}")
        return _NetworkListener(
            address, handler, timeouts, self._shared_memory, self._security(), self._limits, self._say
        )

    def connect(self, address: str, timeouts: Timeouts) -> Connection:
        return _NetworkConnection(address, timeouts, self._shared_memory, self._security())

    def speaking_as(self, identity: Identity) -> Network:
        return Network(
            self._shared_memory,
            credentials=self._credentials,
            identity=identity,
            limits=self._limits,
            say=self._say,
        )

    def _security(self) -> Security:
        return Security.of(self._credentials, self._identity)
