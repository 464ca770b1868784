"""The transport that tasks use: shared memory within a machine, UCX or Arrow Flight between machines."""

from __future__ import annotations

import logging
import threading
import time

from ..cluster.carrier import Carrier
from ..cluster.credentials import Credentials
from ..cluster.identity import OBSERVER, Identity
from ..cluster.resolvers.credentials import MEANING, resolve_credentials
from ..cluster.resolvers.transport import resolve_carrier, resolve_trusted_fabric
from ..errors import ClusterError, DeadlineExceeded, TransportUnavailable, Unreachable
from ..runtime.waiting import Say, say_on_stderr
from . import port as ports
from . import ucx
from .flight import ConnectionLimits, FlightConnection, FlightListener
from .local import is_supported
from .local_door import LocalDoor, open_local_stream
from .security import Security
from .transport import Connection, Handler, Listener, Stream, Timeouts

logger = logging.getLogger("trainband.wire")

_UCX_TRIES_S = 5.0
"""For how long a stream that may also travel over Flight waits for UCX to connect."""


class _NetworkListener:
    """A Flight listener, and the doors beside it: for tasks on this machine, and for streams over UCX."""

    def __init__(
        self,
        address: str,
        handler: Handler,
        timeouts: Timeouts,
        local: LocalDoor | None,
        fast: ucx.UcxDoor | None,
        security: Security,
        limits: ConnectionLimits,
        say: Say,
    ) -> None:
        self._doors = [door for door in (local, fast) if door is not None]
        try:
            self._flight = FlightListener(
                address,
                handler,
                timeouts,
                local.name if local is not None else "",
                actions={ucx.OPEN: ucx.no_door if fast is None else fast.open},
                security=security,
                limits=limits,
                say=say,
            )
        except BaseException:
            for door in self._doors:
                door.stop(timeouts.grace_s)
            raise
        for door in self._doors:
            door.address = self._flight.address
        if local is not None:
            local.caller_of = self._flight.caller_of

    @property
    def address(self) -> str:
        return self._flight.address

    def stop(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        # All at once: they share the grace period.
        threads = [
            threading.Thread(target=door.stop, args=(grace_s,), name="trainband-stop-door", daemon=True)
            for door in self._doors
        ]
        for thread in threads:
            thread.start()
        self._flight.stop(grace_s)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class _NetworkConnection:
    """A Flight connection whose streams take the fastest way that both ends have.

    Args:
      carriers: the ways to try, the best first.
      say: where it says that a way which both ends have does not lead there.
    """

    def __init__(
        self, address: str, timeouts: Timeouts, carriers: tuple[Carrier, ...], security: Security, say: Say
    ) -> None:
        self._flight = FlightConnection(address, timeouts, security)
        self._timeouts = timeouts
        self._carriers = carriers
        self._say = say
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._pulse: ucx.StreamPulse = ucx.StreamPulse(f"ucx-{address}", timeouts.heartbeat_s / 2)
        self._ucx_said = ""

    @property
    def address(self) -> str:
        return self._flight.address

    def call(self, action: str, body: bytes = b"", *, timeout_s: float) -> bytes:
        return self._flight.call(action, body, timeout_s=timeout_s)

    def open_stream(self, *, timeout_s: float) -> Stream:
        deadline = time.monotonic() + timeout_s
        for number, carrier in enumerate(self._carriers, 1):
            left_s = max(0.001, deadline - time.monotonic())
            is_last = number == len(self._carriers)
            match carrier:
                case Carrier.SHARED_MEMORY:
                    stream = self._open_local(left_s, is_last)
                case Carrier.UCX:
                    stream = self._open_ucx(left_s, is_last)
                case _:
                    return self._flight.open_stream(timeout_s=left_s)
            if stream is not None:
                return stream
        raise AssertionError("the last way opens or raises")

    def _open_local(self, timeout_s: float, is_last: bool) -> Stream | None:
        # Asked each time: a task that was restarted has another door.
        name = self._flight.door(timeout_s=timeout_s).door
        if name:
            ticket = self._flight.ticket(timeout_s=timeout_s)
            try:
                return self._kept(
                    open_local_stream(name, self.address, self._timeouts, timeout_s, self._forget, ticket)
                )
            except Unreachable:
                pass  # another machine, container or user: the network reaches it
        if is_last:
            raise TransportUnavailable(
                f"{self.address} cannot be reached through shared memory, which is the transport that was asked for: "
                "it runs on another machine, in another container or as another user, or takes no streams that way. "
                "The transport auto finds a way."
            )
        return None

    def _open_ucx(self, timeout_s: float, is_last: bool) -> Stream | None:
        if not is_last and self._ucx_said:
            return None
        try:
            stream = ucx.open_ucx_stream(
                lambda body, left_s: self._flight.call(ucx.OPEN, body, timeout_s=left_s),
                self.address,
                self._timeouts,
                timeout_s if is_last else min(timeout_s, _UCX_TRIES_S),
                self._forget,
            )
        except TransportUnavailable as exc:
            if is_last:
                raise
            self._ucx_said = str(exc)
            logger.info("the stream to %s goes over Flight: %s", self.address, exc)
            return None
        except DeadlineExceeded as exc:
            if is_last:
                raise
            self._ucx_said = str(exc)
            self._say(f"WARNING: the stream to {self.address} goes over Flight: {exc}")
            return None
        self._pulse.add(stream)
        return self._kept(stream)

    def _kept(self, stream: Stream) -> Stream:
        with self._lock:
            self._streams.add(stream)
        return stream

    def _forget(self, stream: Stream) -> None:
        if isinstance(stream, ucx.UcxStream):
            self._pulse.remove(stream)
        with self._lock:
            self._streams.discard(stream)

    def close(self) -> None:
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close()
        self._pulse.close()
        self._flight.close()


class Network:
    """Carries calls over Arrow Flight, and streams by the fastest way that both ends have.

    Args:
      transport: how streams travel. `auto`: through shared memory where both ends are on one machine (Linux only), over
        UCX where both have it (`pip install 'trainband[ucx]'`) and no certificates are given, else over Flight. `ucx`,
        `shared-memory`: so and not otherwise. `flight`: all of them over Flight. What the environment says
        (`TRAINBAND_TRANSPORT`) where `None`.
      trusted_fabric: whether streams may go over UCX, which does not encrypt, though the job has certificates; what the
        environment says (`TRAINBAND_TRUSTED_FABRIC`) where `None`.
      credentials: with which both ends prove who they are; those that the environment gives where `None`.
      identity: as whom this one speaks.
      limits: what a listener lets its peers take.
      say: where it says whom it has refused.

    Raises:
      ClusterError: there is no such transport, it may not be used with these credentials, or they cannot be used.
    """

    def __init__(
        self,
        transport: str | None = None,
        *,
        trusted_fabric: bool | None = None,
        credentials: Credentials | None = None,
        identity: Identity = OBSERVER,
        limits: ConnectionLimits | None = None,
        say: Say = say_on_stderr,
    ) -> None:
        self._carrier = resolve_carrier() if transport is None else Carrier.of(transport, "Network(transport)")
        self._trusted_fabric = resolve_trusted_fabric() if trusted_fabric is None else trusted_fabric
        self._credentials = resolve_credentials() if credentials is None else credentials
        self._identity = identity
        self._limits = limits or ConnectionLimits()
        self._say = say
        self._carriers = self._resolve()

    def _resolve(self) -> tuple[Carrier, ...]:
        """The ways to try, the best first."""
        has_certificates = self._credentials.tls is not None
        self._carrier.require_trust(has_certificates=has_certificates, trusted_fabric=self._trusted_fabric)
        if self._carrier is Carrier.SHARED_MEMORY and not is_supported():
            raise ClusterError("the transport shared-memory was asked for, which only Linux has.")
        if self._carrier is not Carrier.AUTO:
            return (self._carrier,)
        carriers = [Carrier.FLIGHT]
        if (self._trusted_fabric or not has_certificates) and ucx.is_installed():
            carriers.insert(0, Carrier.UCX)
        if is_supported():
            carriers.insert(0, Carrier.SHARED_MEMORY)
        return tuple(carriers)

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        """The ways that a stream tries, the best first."""
        return self._carriers

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
        fast = None
        if Carrier.UCX in self._carriers:
            fast = ucx.UcxDoor(handler, timeouts, is_wanted=self._carrier is Carrier.UCX)
        local = LocalDoor(handler, timeouts) if Carrier.SHARED_MEMORY in self._carriers else None
        return _NetworkListener(address, handler, timeouts, local, fast, self._security(), self._limits, self._say)

    def connect(self, address: str, timeouts: Timeouts) -> Connection:
        return _NetworkConnection(address, timeouts, self._carriers, self._security(), self._say)

    def speaking_as(self, identity: Identity) -> Network:
        return Network(
            self._carrier,
            trusted_fabric=self._trusted_fabric,
            credentials=self._credentials,
            identity=identity,
            limits=self._limits,
            say=self._say,
        )

    def _security(self) -> Security:
        return Security.of(self._credentials, self._identity)
