"""A client's channel to one listener."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from numpy.typing import NDArray

from trainband.cluster.certificate_files import Certified
from trainband.errors import (
    AuthenticationError,
    NobodyListens,
    PeerError,
    ProtocolError,
    RefusalCode,
    UnknownHost,
    Unreachable,
)
from trainband.wire import port as ports
from trainband.wire.flight.columns import tensor_values
from trainband.wire.flight.outbox import BODY_SCHEMA
from trainband.wire.flight.stream import ClientStream
from trainband.wire.flight.tickets import TicketSender
from trainband.wire.flight.translation import translate, translate_stream
from trainband.wire.handling import closed_here
from trainband.wire.messages.codec import decode, encode
from trainband.wire.security import handshake
from trainband.wire.security.handshake import ClientSide, Hello, ListenerInfo, Proved
from trainband.wire.security.retries import retried
from trainband.wire.security.revocation import RevocationWatch
from trainband.wire.security.security import OPEN, Security
from trainband.wire.security.tls import speaks_tls
from trainband.wire.ticker import Ticker
from trainband.wire.transport import Stream, Timeouts

logger = logging.getLogger(__name__)

STREAM_COMMAND = b"trainband.stream"
"""Prefix of the command of an exchange that is a trainband stream; the seal of its opening follows."""

_GREETING_PAUSES_S = (0.02, 0.1, 0.3, 0.6)
"""Seconds between attempts to greet a listener."""

_CLIENT_OPTIONS = [
    # How far the listener may send ahead of our reads. gRPC's default starts at 64 KiB: this raises 400 MB
    # each way from 2.0 to 3.6 GB/s, and allows two frames to be sent before the first answer is read.
    ("grpc.http2.lookahead_bytes", 64 << 20),
    # Tasks are addressed directly, not through a proxy set for web access.
    ("grpc.enable_http_proxy", 0),
]


class FlightConnection:
    """A client's channel to one listener.

    Args:
      security: the caller's identity and its proof.
    """

    def __init__(self, address: str, timeouts: Timeouts, security: Security = OPEN) -> None:
        ports.split(address)
        self._address = address
        self._timeouts = timeouts
        self._security = security
        self._lock = threading.Lock()
        self._proving = threading.Lock()
        self._client: Any = None
        self._is_absent = False
        """Whether nothing listened at the last attempt."""
        self._listener: Certified | None = None  # the owner of the listener's certificate
        self._revocations = RevocationWatch(address)
        self._proved: ClientSide | None = None
        self._tickets = TicketSender()
        self._streams: set[ClientStream] = set()
        self._ticker: Ticker[ClientStream] = Ticker(address, timeouts.heartbeat_s / 2)
        self._closed = False

    @property
    def address(self) -> str:
        return self._address

    def _connected(self, timeout_s: float) -> Any:
        with self._lock:
            if self._closed:
                raise closed_here(self._address)
            # After a revocation, a new connection finds the listener's new certificate, or raises.
            if self._client is None or self._is_listener_revoked():
                self._client = self._new_client(timeout_s)
            return self._client

    def _is_listener_revoked(self) -> bool:
        """Whether the certificate of the listener has been revoked since we connected."""
        tls = self._security.tls
        return tls is not None and self._listener is not None and tls.is_revoked(self._listener)

    def watch(self, stream: Stream) -> None:
        """Ends a stream to the listener when the certificate of the listener is revoked."""
        tls, listener = self._security.tls, self._listener
        if tls is not None and listener is not None:
            self._revocations.add(stream, lambda: tls.require_valid(listener, f" at {self._address}"))

    def unwatch(self, stream: Stream) -> None:
        """Stops watching a stream that has ended."""
        self._revocations.remove(stream)

    def _new_client(self, timeout_s: float) -> Any:
        tls = self._security.tls
        if tls is None:
            return flight.FlightClient(
                f"grpc+tcp://{self._address}", generic_options=_CLIENT_OPTIONS, middleware=[self._tickets]
            )
        pinned, self._listener = tls.fetch_certificate(self._address, timeout_s)
        options = tls.options(pinned)
        return flight.FlightClient(
            f"grpc+tls://{self._address}",
            tls_root_certs=options.tls_root_certs,
            cert_chain=options.cert_chain,
            private_key=options.private_key,
            override_hostname=options.override_hostname,
            generic_options=_CLIENT_OPTIONS,
            middleware=[self._tickets],
        )

    def _disconnected(self, client: Any) -> None:
        # A gRPC channel that failed to connect refuses calls without retrying, each time for longer,
        # up to two minutes. A new channel tries at once.
        with self._lock:
            if self._client is client and not self._streams:
                self._client = None

    def call(self, action: str, body: bytes = b"", *, timeout_s: float) -> bytes:
        if not self._security.seals:
            try:
                return self._act(action, body, timeout_s)
            except AuthenticationError as exc:
                is_theirs = exc.code in (RefusalCode.UNPROVED, RefusalCode.NO_SESSION)
                raise self._without_secret() if is_theirs else exc from None
        deadline = time.monotonic() + timeout_s
        side = self._prove(deadline)
        try:
            return self._sealed(side, action, body, deadline, timeout_s)
        except AuthenticationError as exc:
            if exc.code is not RefusalCode.NO_SESSION:
                raise
        # Another process listens there now, or gRPC has reconnected.
        with self._proving:
            if self._proved is side:
                self._proved = None
        return self._sealed(self._prove(deadline), action, body, deadline, timeout_s)

    def _sealed(self, side: ClientSide, action: str, body: bytes, deadline: float, timeout_s: float) -> bytes:
        counter, sealed = side.seal(action, body)
        return side.open_answer(counter, self._act(action, sealed, _left_s(deadline), timeout_s))

    def _act(self, action: str, body: bytes, timeout_s: float, whole_s: float | None = None) -> bytes:
        """`whole_s`: the caller's total timeout if this is only a part of it; for messages."""
        # A task that waits for another asks often. An attempt takes gRPC 2 ms of processor, and this 0.02 ms.
        if self._is_absent and ports.refuses(self._address, timeout_s):
            raise ports.nobody_listens(self._address)
        self._is_absent = False
        client = self._connected(timeout_s)
        try:
            results = list(client.do_action(flight.Action(action, body), flight.FlightCallOptions(timeout=timeout_s)))
        except (pa.ArrowException, flight.FlightError, OSError) as exc:
            error = translate(exc, self._address, whole_s or timeout_s)
            logger.debug("%s did not answer %r: %s", self._address, action, exc)
            if isinstance(error, Unreachable):
                self._disconnected(client)
                self._is_absent = isinstance(error, NobodyListens)
                if self._security.tls is None and speaks_tls(self._address, min(1.0, timeout_s)):
                    error = AuthenticationError(
                        f"{self._address} serves with TLS only; give this task certificates of the same authority, by "
                        "TRAINBAND_TLS.",
                        RefusalCode.OTHER,
                    )
                elif not isinstance(error, NobodyListens | UnknownHost):
                    error = ports.silent(self._address, min(1.0, timeout_s)) or error
            raise error from exc
        if len(results) != 1:
            raise ProtocolError(f"{self._address} gave {len(results)} answers to {action!r} instead of one.")
        return bytes(results[0].body.to_pybytes())

    def _prove(self, deadline: float) -> ClientSide:
        """Proves our identity, once per connection."""
        with self._proving:
            if self._proved is None:
                self._proved = self._tickets.side = retried(
                    lambda: self._start_session(deadline), _is_closed, _GREETING_PAUSES_S, deadline
                )
            return self._proved

    def _start_session(self, deadline: float) -> ClientSide:
        side = ClientSide(self._security.secret, self._security.identity, self._address)
        proof = encode(side.prove(self._hello(side, _left_s(deadline))))
        answered = self._act(handshake.PROVE, proof, _left_s(deadline))
        side.start_session(decode(answered, Proved, self._address))
        return side

    def _hello(self, side: ClientSide, timeout_s: float) -> Hello:
        answered = self._act(handshake.HELLO, encode(side.request), timeout_s)
        try:
            hello = decode(answered, Hello, self._address)
        except ProtocolError as exc:
            raise ProtocolError(f"{self._address} is not a trainband task: {exc.__cause__}.") from exc
        if hello.protocol != handshake.PROTOCOL:
            raise ProtocolError(
                f"{self._address} speaks version {hello.protocol} of trainband's protocol, this task version "
                f"{handshake.PROTOCOL}; install the same trainband for all tasks."
            )
        return hello

    def listener_info(self, *, timeout_s: float) -> ListenerInfo:
        """Asks for the listener's identity, and how to open streams on its own machine.

        Raises:
          ProtocolError: the listener is incompatible.
          AuthenticationError: one of the two has not proved that it belongs to the job.
        """
        if self._security.seals:
            return decode(self.call(handshake.INFO, timeout_s=timeout_s), ListenerInfo, self._address)
        side = ClientSide(b"", self._security.identity, self._address)
        deadline = time.monotonic() + timeout_s
        hello = retried(lambda: self._hello(side, _left_s(deadline)), _is_closed, _GREETING_PAUSES_S, deadline)
        if hello.sealed:
            raise self._without_secret()
        return ListenerInfo(incarnation=hello.incarnation, local_socket=hello.local_socket)

    def proved_client(self, *, timeout_s: float) -> Any:
        """Returns Arrow's own client, on an authenticated connection. The caller closes it."""
        self.listener_info(timeout_s=timeout_s)
        return self._connected(timeout_s)

    def read(self, variable: str, *, timeout_s: float) -> NDArray[Any]:
        """Reads the listener's values of a variable, in one dimension.

        Raises:
          PeerError: the listener does not answer, or does not have this variable.
        """
        client = self.proved_client(timeout_s=timeout_s)
        options = flight.FlightCallOptions(timeout=timeout_s)
        try:
            return tensor_values(client.do_get(flight.Ticket(variable.encode()), options).read_all())
        except (pa.ArrowException, flight.FlightError, OSError) as exc:
            raise translate(exc, self._address, timeout_s) from exc

    def _without_secret(self) -> AuthenticationError:
        return AuthenticationError(
            f"{self._address} belongs to a job with a secret, which this task does not have; give it the same "
            "TRAINBAND_SECRET_FILE."
        )

    def ticket(self, *, timeout_s: float) -> bytes:
        """Returns the ticket that opens one stream over any transport; empty if none is required."""
        if not self._security.seals:
            return b""
        return self._prove(time.monotonic() + timeout_s).seal(handshake.STREAM, b"")[1]

    def open_stream(self, *, timeout_s: float) -> Stream:
        deadline = time.monotonic() + timeout_s
        # Also finds out, with a deadline that gRPC keeps, whether the listener is there and knows our session.
        self.listener_info(timeout_s=timeout_s)
        ticket = self.ticket(timeout_s=_left_s(deadline))
        try:
            client = self._connected(_left_s(deadline))
            writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(STREAM_COMMAND + ticket))
            writer.begin(BODY_SCHEMA)
        except (pa.ArrowException, flight.FlightError, OSError) as exc:
            if isinstance(exc, PeerError):
                raise
            raise translate(exc, self._address, timeout_s) from exc
        stream = ClientStream(
            reader,
            writer,
            peer=self._address,
            timeouts=self._timeouts,
            abort=reader.cancel,
            translate=lambda exc: translate_stream(exc, self._address),
            forget=self._forget,
        )
        with self._lock:
            self._streams.add(stream)
        self._ticker.add(stream)
        self.watch(stream)
        try:
            stream.await_greeting(_left_s(deadline))
        except BaseException:
            stream.close()
            raise
        return stream

    def _forget(self, stream: ClientStream) -> None:
        self._ticker.remove(stream)
        self.unwatch(stream)
        with self._lock:
            self._streams.discard(stream)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
            streams = list(self._streams)
        for stream in streams:
            stream.close()
        self._ticker.close()
        self._revocations.close()
        if client is not None:
            with contextlib.suppress(pa.ArrowException, OSError):
                client.close()


def _is_closed(exc: PeerError) -> bool:
    """Whether the listener may have closed a connection before any proof."""
    return isinstance(exc, Unreachable) and not isinstance(exc, NobodyListens | UnknownHost)


def _left_s(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
