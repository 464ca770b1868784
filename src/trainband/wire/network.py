"""The transport that tasks use: shared memory within a machine, UCX or Arrow Flight between machines."""

from __future__ import annotations

import logging
import threading
import time

from trainband.cluster.address import resolves_to_loopback
from trainband.cluster.credentials import Credentials
from trainband.cluster.identity import OBSERVER, Identity
from trainband.cluster.resolvers.credentials import MEANING, resolve_credentials
from trainband.cluster.resolvers.transport import resolve_transport, resolve_trusted_fabric
from trainband.cluster.resolvers.user_secret import credentials_at
from trainband.cluster.transport_choice import TransportChoice
from trainband.errors import ClusterError, DeadlineExceeded, TransportUnavailable, Unreachable
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.wire import port as ports
from trainband.wire import ucx
from trainband.wire.flight import ConnectionLimits, FlightConnection, FlightListener
from trainband.wire.security.security import Security
from trainband.wire.shared_memory.listener import SharedMemoryListener, open_shared_memory_stream
from trainband.wire.shared_memory.stream import is_supported
from trainband.wire.transport import Connection, Handler, Listener, Stream, Timeouts

logger = logging.getLogger("trainband.wire")

_UCX_TRIES_S = 5.0
"""Seconds that a stream which may fall back to Flight waits for UCX to connect."""


class _NetworkListener:
    """A Flight listener with its listeners for shared-memory and UCX streams."""

    def __init__(
        self,
        address: str,
        handler: Handler,
        timeouts: Timeouts,
        shared_memory: SharedMemoryListener | None,
        over_ucx: ucx.UcxListener | None,
        security: Security,
        limits: ConnectionLimits,
        say: Say,
    ) -> None:
        self._stream_listeners = [listener for listener in (shared_memory, over_ucx) if listener is not None]
        try:
            self._flight = FlightListener(
                address,
                handler,
                timeouts,
                shared_memory.name if shared_memory is not None else "",
                actions={ucx.OPEN: ucx.not_served if over_ucx is None else over_ucx.open},
                security=security,
                limits=limits,
                say=say,
            )
        except BaseException:
            for listener in self._stream_listeners:
                listener.stop(timeouts.grace_s)
            raise
        for listener in self._stream_listeners:
            listener.address, listener.handler = self._flight.address, self._flight.handler
        if shared_memory is not None:
            shared_memory.caller_of = self._flight.caller_of

    @property
    def address(self) -> str:
        return self._flight.address

    def stop(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        # In parallel, so that they share the grace period.
        threads = [
            threading.Thread(target=listener.stop, args=(grace_s,), name="trainband-stop-listener", daemon=True)
            for listener in self._stream_listeners
        ]
        for thread in threads:
            thread.start()
        self._flight.stop(grace_s)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class _NetworkConnection:
    """A Flight connection whose streams use the fastest transport of both ends.

    Args:
      transports: the transports to try, the best first.
      say: takes a warning when a transport that both ends have does not connect.
    """

    def __init__(
        self, address: str, timeouts: Timeouts, transports: tuple[TransportChoice, ...], security: Security, say: Say
    ) -> None:
        self._flight = FlightConnection(address, timeouts, security)
        self._timeouts = timeouts
        self._choices = transports
        self._say = say
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._ticker: ucx.StreamTicker = ucx.StreamTicker(f"ucx-{address}", timeouts.heartbeat_s / 2)
        self._ucx_said = ""

    @property
    def address(self) -> str:
        return self._flight.address

    def call(self, action: str, body: bytes = b"", *, timeout_s: float) -> bytes:
        return self._flight.call(action, body, timeout_s=timeout_s)

    def open_stream(self, *, timeout_s: float) -> Stream:
        deadline = time.monotonic() + timeout_s
        for number, transport in enumerate(self._choices, 1):
            left_s = max(0.001, deadline - time.monotonic())
            is_last = number == len(self._choices)
            match transport:
                case TransportChoice.SHARED_MEMORY:
                    stream = self._open_local(left_s, is_last)
                case TransportChoice.UCX:
                    stream = self._open_ucx(left_s, is_last)
                case _:
                    return self._flight.open_stream(timeout_s=left_s)
            if stream is not None:
                return stream
        raise AssertionError("the last transport opens or raises")

    def _open_local(self, timeout_s: float, is_last: bool) -> Stream | None:
        # Asked each time: a restarted task has another socket. Tried, not guessed from addresses: network namespaces
        # and containers have abstract sockets of their own.
        name = self._flight.listener_info(timeout_s=timeout_s).local_socket
        if name:
            ticket = self._flight.ticket(timeout_s=timeout_s)
            try:
                return self._kept(
                    open_shared_memory_stream(name, self.address, self._timeouts, timeout_s, self._forget, ticket)
                )
            except Unreachable:
                pass  # another machine, container or user: the network reaches it
        if is_last:
            raise TransportUnavailable(
                f"{self.address} cannot be reached through shared memory, the requested transport: it runs on another "
                "machine, in another container or as another user, or does not serve shared memory. "
                "Use the transport auto."
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
                is_wanted=is_last,
            )
        except TransportUnavailable as exc:
            if is_last:
                raise
            self._ucx_said = str(exc)
            logger.info("the stream to %s uses Flight: %s", self.address, exc)
            return None
        except DeadlineExceeded as exc:
            if is_last:
                raise
            self._ucx_said = str(exc)
            self._say(f"WARNING: the stream to {self.address} uses Flight: {exc}")
            return None
        self._ticker.add(stream)
        return self._kept(stream)

    def _kept(self, stream: Stream) -> Stream:
        self._flight.watch(stream)
        with self._lock:
            self._streams.add(stream)
        return stream

    def _forget(self, stream: Stream) -> None:
        if isinstance(stream, ucx.UcxStream):
            self._ticker.remove(stream)
        self._flight.unwatch(stream)
        with self._lock:
            self._streams.discard(stream)

    def close(self) -> None:
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close()
        self._ticker.close()
        self._flight.close()


class Network:
    """Carries calls over Arrow Flight, and streams over the fastest transport that both ends have.

    Args:
      transport: how streams travel. `auto`: through shared memory if both ends are on one machine (Linux only); over
        UCX if both have it (`pip install 'trainband[ucx]'`) and the fabric is trusted, or the job has no security;
        else over Flight. `ucx`, `shared-memory`: only this way. `flight`: always over Flight. `None`: as set in
        the environment (`TRAINBAND_TRANSPORT`).
      trusted_fabric: whether streams may use UCX, which neither encrypts nor authenticates, although the job has a
        secret or certificates; `None`: as set in the environment (`TRAINBAND_TRUSTED_FABRIC`).
      credentials: used by both ends to prove their identity; `None`: those of the environment or, on loopback
        addresses, the user's own secret.
      identity: this task's identity.
      limits: how much a listener accepts from its peers.
      say: takes a warning when a peer is refused.

    Raises:
      ClusterError: the transport is unknown, may not be used with these credentials, or they are unusable.
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
        self._transport = (
            resolve_transport() if transport is None else TransportChoice.of(transport, "Network(transport)")
        )
        self._trusted_fabric = resolve_trusted_fabric() if trusted_fabric is None else trusted_fabric
        self._given = credentials
        self._identity = identity
        self._limits = limits or ConnectionLimits()
        self._say = say
        self._choices = self._resolve()

    def _resolve(self) -> tuple[TransportChoice, ...]:
        """Returns the transports to try, the best first."""
        credentials = resolve_credentials() if self._given is None else self._given
        # If the environment sets nothing, tasks at loopback addresses use their user's own secret.
        is_protected = credentials.protect or (self._given is None and not credentials.insecure)
        is_trusted = self._trusted_fabric or not is_protected
        self._transport.require_trust(is_protected=is_protected, trusted_fabric=self._trusted_fabric)
        if self._transport is TransportChoice.SHARED_MEMORY and not is_supported():
            raise ClusterError("the transport shared-memory requires Linux; use the transport auto.")
        if self._transport is not TransportChoice.AUTO:
            return (self._transport,)
        transports = [TransportChoice.FLIGHT]
        if is_trusted and ucx.is_installed():
            transports.insert(0, TransportChoice.UCX)
        if is_supported():
            transports.insert(0, TransportChoice.SHARED_MEMORY)
        return tuple(transports)

    @property
    def transports(self) -> tuple[TransportChoice, ...]:
        """The transports that a stream tries, the best first."""
        return self._choices

    def listen(self, address: str, handler: Handler, timeouts: Timeouts) -> Listener:
        ports.check(address)
        credentials = self._credentials_at(address)
        if not (credentials.protect or credentials.insecure or resolves_to_loopback(address)):
            raise ClusterError(
                f"{self._identity.name} would serve at {address}, which other machines can reach, without security: "
                "anyone who reaches the port could read the model and take over the job. Give all tasks of the job a "
                "secret (`trainband secret FILE`, and TRAINBAND_SECRET_FILE=FILE for each task) or certificates "
                "(`trainband certs`, TRAINBAND_TLS). On a network without other users, set TRAINBAND_INSECURE=1 (with "
                "trainband run: --insecure) instead."
            )
        if credentials.insecure and not resolves_to_loopback(address):
            self._say(f"WARNING: {self._identity.name} at {address}: {MEANING}")
        over_ucx = None
        if TransportChoice.UCX in self._choices:
            over_ucx = ucx.UcxListener(handler, timeouts, is_wanted=self._transport is TransportChoice.UCX)
        shared_memory = (
            SharedMemoryListener(handler, timeouts) if TransportChoice.SHARED_MEMORY in self._choices else None
        )
        security = Security.of(credentials, self._identity)
        return _NetworkListener(address, handler, timeouts, shared_memory, over_ucx, security, self._limits, self._say)

    def connect(self, address: str, timeouts: Timeouts) -> Connection:
        security = Security.of(self._credentials_at(address), self._identity)
        return _NetworkConnection(address, timeouts, self._choices, security, self._say)

    def speaking_as(self, identity: Identity) -> Network:
        return Network(
            self._transport,
            trusted_fabric=self._trusted_fabric,
            credentials=self._given,
            identity=identity,
            limits=self._limits,
            say=self._say,
        )

    def _credentials_at(self, address: str) -> Credentials:
        return credentials_at(address) if self._given is None else self._given
