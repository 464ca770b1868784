"""A Flight server for one handler."""

from __future__ import annotations

import atexit
import contextlib
import secrets
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from trainband.cluster.identity import Identity, Role
from trainband.errors import AuthenticationError, RefusalCode, Refused
from trainband.runtime.hosts import with_port
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.wire import port as ports
from trainband.wire.flight import variables
from trainband.wire.flight.connection import STREAM_COMMAND
from trainband.wire.flight.connection_guard import Allowance, ConnectionGuard, ConnectionLimits, Refusals
from trainband.wire.flight.outbox import BODY_SCHEMA
from trainband.wire.flight.sockets import cut
from trainband.wire.flight.stream import ExchangeStream
from trainband.wire.flight.tickets import MIDDLEWARE, TicketReceiver, ticket_of
from trainband.wire.flight.translation import closing, refuse, translate_stream
from trainband.wire.handling import answer, refusal, serve
from trainband.wire.messages.codec import decode, encode
from trainband.wire.security import handshake
from trainband.wire.security.handshake import Hello, HelloRequest, ListenerInfo, ListenerSide, Prove, Proved
from trainband.wire.security.revocation import RevocableHandler
from trainband.wire.security.security import OPEN, Security
from trainband.wire.ticker import Ticker
from trainband.wire.transport import ANYBODY, Caller, Handler, Timeouts

_READERS = frozenset({Role.OBSERVER})
_LIMITS = ConnectionLimits()
_NO_ACTIONS: Mapping[str, Callable[[bytes, Caller], bytes]] = MappingProxyType({})


def _peer_name(peer: str) -> str:
    """Converts gRPC's `ipv4:host:port` or `ipv6:%5Bhost%5D:port` to `host:port`."""
    return peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]")


def _skip_shutdown_at_exit(server: flight.FlightServerBase) -> None:
    """Cancels pyarrow's shutdown of a server at the end of the interpreter.

    pyarrow uses `weakref.finalize` and would wait for every open call, for as long as it takes. An object's finalizer
    is not publicly accessible; if the private way is gone, the interpreter waits.
    """
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and found[0] is server:
            finalizer.atexit = False


@dataclass(frozen=True, slots=True)
class _Sealed:
    """An admitted call: the caller, the body, and how to seal the answer."""

    caller: Caller
    body: bytes
    session: handshake.Session | None = None
    counter: int = 0


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Receives Flight's calls. Serves as soon as it is created."""

    def __init__(self, location: str, listener: FlightListener, security: Security) -> None:
        self._listener = listener
        middleware = {MIDDLEWARE: TicketReceiver()}
        if security.tls is None:
            super().__init__(location, middleware=middleware)
        else:
            files = security.tls.files
            super().__init__(
                location,
                tls_certificates=[(files.certificate, files.key)],
                verify_client=True,
                root_certificates=files.authority,
                middleware=middleware,
            )

    @contextlib.contextmanager
    def _serving(self, context: Any, doing: str) -> Iterator[FlightListener]:
        """Wraps each call: waits for the listener to be complete, turns exceptions into refusals."""
        self._listener.complete.wait()
        if self._listener.is_stopping():
            raise flight.FlightUnavailableError("stopping")
        try:
            yield self._listener
        except flight.FlightError:
            raise
        except Exception as exc:
            refused = refusal(exc, doing, self._listener.address)
            self._listener.report_refusal(_peer_name(context.peer()), refused)
            raise refuse(refused) from exc

    def do_action(self, context: Any, action: Any) -> list[Any]:
        name = action.type[:64]
        with self._serving(context, f"the call {name!r}") as listener:
            body = listener.act(_peer_name(context.peer()), context.peer_identity(), name, action.body)
            return [flight.Result(body)]

    def list_actions(self, _context: Any) -> list[Any]:
        return [flight.ActionType(handshake.HELLO, "who listens here")]

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._serving(context, "a stream") as listener:
            command = descriptor.command or b""
            if not command.startswith(STREAM_COMMAND) or len(command) > 1024:
                raise Refused(f"{listener.address} only exchanges trainband streams.")
            ticket = command[len(STREAM_COMMAND) :]
            listener.serve_stream(_peer_name(context.peer()), context.peer_identity(), ticket, reader, writer)

    def list_flights(self, context: Any, _criteria: Any) -> Iterator[Any]:
        with self._serving(context, "a list of variables") as listener:
            listener.require_reader(context, "list the variables")
            infos = [variables.describe(tensor, listener.scheme) for tensor in listener.handler.tensors()]
        return iter(infos)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with self._serving(context, "a look at a variable") as listener:
            listener.require_reader(context, "look at a variable")
            return variables.info_of(listener.handler, descriptor, listener.scheme)

    def do_get(self, context: Any, ticket: Any) -> Any:
        with self._serving(context, "a read of a variable") as listener:
            listener.require_reader(context, "read a variable")
            return variables.read(listener.handler, ticket.ticket)

    def do_put(self, context: Any, _descriptor: Any, _reader: Any, _writer: Any) -> None:
        with self._serving(context, "an assignment of a variable") as listener:  # none of it is read
            raise Refused(
                f"{listener.address} does not let other clients assign variables: only the chief's own stream may."
            )


class FlightListener:
    """A Flight server for one handler.

    Args:
      local_socket: name of the Unix socket that opens shared-memory streams to the same handler; empty without one.
      actions: control calls that the handler does not serve.
      security: its identity, and how it authenticates callers.

    Raises:
      AddressInUse: another process has the port.
      ClusterError: the address is not one of this machine.
    """

    def __init__(
        self,
        address: str,
        handler: Handler,
        timeouts: Timeouts,
        local_socket: str = "",
        *,
        actions: Mapping[str, Callable[[bytes, Caller], bytes]] = _NO_ACTIONS,
        security: Security = OPEN,
        limits: ConnectionLimits = _LIMITS,
        say: Say = say_on_stderr,
    ) -> None:
        host, _ = ports.split(address)
        tls = security.tls
        self._revocable = None if tls is None else RevocableHandler(handler, tls, address)
        self.handler: Handler = self._revocable or handler
        self.scheme = "grpc+tcp" if security.tls is None else "grpc+tls"
        """Scheme of its address."""
        self.complete = threading.Event()
        """Set when calls can be answered: the server starts to serve on creation."""
        self._timeouts = timeouts
        self._stopping = threading.Event()
        self._stop_lock = threading.Lock()
        self._ticker: Ticker[ExchangeStream] = Ticker(address, timeouts.heartbeat_s / 2)
        self._incarnation = secrets.token_hex(8)
        self._local_socket = local_socket
        self._actions = actions
        self._security = security
        self._limits = limits
        self._side = ListenerSide(
            security.secret, replace(security.identity, incarnation=self._incarnation), time.monotonic
        )
        self._calls = Allowance(limits.calls_per_s, limits.call_burst)
        self._unopened: Counter[str] = Counter()
        self._address = address
        self._refusals = Refusals(say, address)
        ports.check(address)
        try:
            self._server = _Server(f"{self.scheme}://{address}", self, security)
        except (pa.ArrowException, OSError):
            # The address was free a moment ago: another process was faster.
            raise ports.address_in_use(address) from None
        self._address = self._refusals.address = with_port(host, self._server.port)
        # Without proofs, the first call may be as large as any.
        strict = limits if security.seals else replace(limits, stranger_bytes=sys.maxsize)
        self._guard = ConnectionGuard(self._server.port, strict, self._refusals)
        self.complete.set()
        # Nor may its destructor run then, which waits too: objects in the frame of a daemon thread are never freed.
        _skip_shutdown_at_exit(self._server)
        waiting = threading.Thread(target=self._server.wait, name=f"trainband-serve-{self._address}", daemon=True)
        waiting.start()
        # A handler that wakes in a finished interpreter aborts the process, so end handlers before that.
        atexit.register(self.stop, timeouts.grace_s)

    @property
    def address(self) -> str:
        return self._address

    def is_stopping(self) -> bool:
        """Whether `stop` was called: nothing new is served."""
        return self._stopping.is_set()

    def report_refusal(self, peer: str, refused: Refused) -> None:
        """Reports that a peer was refused, if the operators of the job need to know."""
        if refused.code in (RefusalCode.UNPROVED, RefusalCode.FORBIDDEN, RefusalCode.BUSY):
            self._refusals.report_refusal(peer, str(refused))

    def act(self, peer: str, certificate: bytes, action: str, body: Any) -> bytes:
        """Answers one control call of a connection."""
        certified = self._certified(certificate)
        if action in handshake.OPEN_ACTIONS:
            return self._greet(peer, certified, certificate, action, body.to_pybytes())
        sealed = self._authenticate(action, body.to_pybytes(), peer, certified)
        self._count(peer, sealed)
        if action == handshake.INFO:
            answered = encode(ListenerInfo(incarnation=self._incarnation, local_socket=self._local_socket))
        elif action in self._actions:
            answered = self._actions[action](sealed.body, replace(sealed.caller, peer=peer))
        else:
            answered = answer(self.handler, action, sealed.body, self._address, sealed.caller)
        if sealed.session is None:
            return answered
        return self._side.seal_answer(sealed.session, sealed.counter, answered)

    def _count(self, peer: str, sealed: _Sealed) -> None:
        """Refuses calls that a client makes too often. Calls count by session, so clients do not affect each other."""
        if not self._calls.admit(sealed.session.number if sealed.session else peer, time.monotonic()):
            raise Refused(
                f"more than {self._limits.calls_per_s:g} calls a second came over one connection.", RefusalCode.BUSY
            )

    def _greet(self, peer: str, certified: Identity | None, certificate: bytes, action: str, body: bytes) -> bytes:
        # A valid proof is never refused, however many others greet: each connection pays for its own calls alone.
        self._guard.charge(peer)
        if action == handshake.HELLO:
            asked = decode(body, HelloRequest, peer)
            if self._security.seals:
                return encode(self._side.hello(asked))
            self._guard.admit(peer, is_new=True)
            return encode(
                Hello(protocol=handshake.PROTOCOL, incarnation=self._incarnation, local_socket=self._local_socket)
            )
        proof = decode(body, Prove, peer)
        if not self._security.seals:
            raise Refused(f"{self._address} does not ask for a proof.")
        session = self._side.prove(proof, peer, certified, certificate)
        self._guard.admit(peer, is_new=True)
        return encode(Proved(session=session.number))

    def _certified(self, certificate: bytes) -> Identity | None:
        tls = self._security.tls
        return None if tls is None else tls.certified(certificate)

    def _authenticate(self, action: str, body: bytes, peer: str | None, certified: Identity | None) -> _Sealed:
        """Identifies the caller; `peer`: the connection of the call, or `None`."""
        if not self._security.seals:
            if peer is not None:
                self._guard.admit(peer)
            return _Sealed(ANYBODY, body)
        try:
            session, counter, opened = self._side.open(action, body, peer)
        except AuthenticationError:
            if peer is not None:
                self._guard.charge(peer)
            raise
        if peer is None:  # the certificate that began the session must still be valid
            certified = self._certified(session.certificate)
        if certified is not None and not certified.covers(session.identity.name):
            raise AuthenticationError(f"a session of {session.identity.name} was used by {certified.name}.")
        return _Sealed(Caller(session.peer, session.identity, session.certificate), opened, session, counter)

    def caller_of(self, ticket: bytes) -> Caller:
        """Identifies the opener of a local stream by this ticket, obtained over a connection of its own."""
        return self._authenticate(handshake.STREAM, ticket, None, None).caller

    def require_reader(self, context: Any, doing: str) -> None:
        """Raises `Refused` if the caller may not read. With certificates, any Flight client may be the caller."""
        peer = _peer_name(context.peer())
        certified = self._certified(context.peer_identity())
        if certified is None:
            action, ticket = ticket_of(context)
            sealed = self._authenticate(action, ticket, peer, None)
        else:
            sealed = _Sealed(Caller(peer, certified), b"")
            self._guard.admit(peer)
        self._count(peer, sealed)
        sealed.caller.require(_READERS, doing)

    def serve_stream(self, peer: str, certificate: bytes, ticket: bytes, reader: Any, writer: Any) -> None:
        """Serves one exchange in the thread of its call."""
        caller = self._authenticate(handshake.STREAM, ticket, peer, self._certified(certificate)).caller
        host = ports.host_of(peer)
        with self._stop_lock:
            if self._unopened[host] >= self._limits.unopened_streams_per_host:
                raise Refused(f"{host} has opened too many streams that send nothing.", RefusalCode.BUSY)
            self._unopened[host] += 1
        opened = False

        def record_opened() -> None:
            nonlocal opened
            if not opened:
                opened = True
                with self._stop_lock:
                    self._unopened[host] -= 1
                    if not self._unopened[host]:
                        del self._unopened[host]

        try:
            writer.begin(BODY_SCHEMA)
            stream = ExchangeStream(
                reader,
                writer,
                peer=peer,
                timeouts=self._timeouts,
                abort=lambda: cut(self._server.port, peer),
                translate=lambda exc: translate_stream(exc, peer),
                is_stopping=self.is_stopping,
                opened=record_opened,
            )
            # A client that opens a stream and sends nothing is cut off.
            stream.abort_at = time.monotonic() + self._timeouts.connect_s
            self._ticker.add(stream)
            try:
                stream.greet()
                reason = serve(self.handler, stream, self._address, caller)
                stream.end(reason)
                if reason:
                    raise closing(reason)
            finally:
                self._ticker.remove(stream)
        finally:
            record_opened()

    def stop(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        with self._stop_lock:
            if self._stopping.is_set():
                return
            self._stopping.set()
        atexit.unregister(self.stop)
        for stream in self._ticker.streams():
            stream.wake()
        # In a thread of its own, because gRPC waits for open streams without limit. An abandoned thread
        # holds the server, so no destructor waits for them either when the process ends.
        server = self._server
        shutdown = threading.Thread(target=server.shutdown, name=f"trainband-stop-{self._address}", daemon=True)
        shutdown.start()
        shutdown.join(0.8 * grace_s)
        if shutdown.is_alive():
            # Also those without a stream: gRPC waits until every client has received its end.
            cut(server.port)
            shutdown.join(max(0.0, deadline - time.monotonic()))
        self._ticker.close()
        self._guard.close()
        if self._revocable is not None:
            self._revocable.close()
