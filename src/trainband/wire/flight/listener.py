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
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.wire import handshake
from trainband.wire import port as ports
from trainband.wire.codec import decode, encode
from trainband.wire.exchange import ExchangeStream
from trainband.wire.flight import variables
from trainband.wire.flight.connection import STREAM_COMMAND
from trainband.wire.flight.doorkeeper import Allowance, ConnectionLimits, Doorkeeper, Refusals
from trainband.wire.flight.sockets import cut
from trainband.wire.flight.translation import refuse, translate_stream
from trainband.wire.handshake import Door, Hello, HelloRequest, ListenerSide, Prove, Proved
from trainband.wire.outbox import BODY_SCHEMA
from trainband.wire.pulse import Pulse
from trainband.wire.security import OPEN, Security
from trainband.wire.serving import answer, refusal, serve
from trainband.wire.transport import ANYBODY, Caller, Handler, Timeouts

_READERS = frozenset({Role.OBSERVER})
_LIMITS = ConnectionLimits()
_NO_ACTIONS: Mapping[str, Callable[[bytes, Caller], bytes]] = MappingProxyType({})


def _peer_name(peer: str) -> str:
    """`host:port` of gRPC's `ipv4:host:port` or `ipv6:%5Bhost%5D:port`."""
    return peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]")


def _leave_at_exit(server: flight.FlightServerBase) -> None:
    """Takes back that pyarrow shuts a server down as the interpreter ends.

    It does so by `weakref.finalize` and would wait there for every open call, however long that takes. There is
    no public way to the finalizer of an object; where the private one has gone, the interpreter waits.
    """
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and found[0] is server:
            finalizer.atexit = False


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A call that was let in: who made it, what it said, and how to seal its answer."""

    caller: Caller
    body: bytes
    session: handshake.Session | None = None
    counter: int = 0


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Flight's calls to us. Starts to serve when made."""

    def __init__(self, location: str, listener: FlightListener, security: Security) -> None:
        self._listener = listener
        if security.tls is None:
            super().__init__(location)
        else:
            files = security.tls.files
            super().__init__(
                location,
                tls_certificates=[(files.certificate, files.key)],
                verify_client=True,
                root_certificates=files.authority,
            )

    @contextlib.contextmanager
    def _serving(self, context: Any, doing: str) -> Iterator[FlightListener]:
        """Around each call: waits for the listener to be complete, makes refusals of exceptions."""
        self._listener.complete.wait()
        if self._listener.is_stopping():
            raise flight.FlightUnavailableError("stopping")
        try:
            yield self._listener
        except flight.FlightError:
            raise
        except Exception as exc:
            refused = refusal(exc, doing, self._listener.address)
            self._listener.note_refusal(_peer_name(context.peer()), refused)
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
                raise Refused(f"{listener.address} exchanges trainband streams and nothing else.")
            ticket = command[len(STREAM_COMMAND) :]
            listener.serve_stream(_peer_name(context.peer()), context.peer_identity(), ticket, reader, writer)

    def list_flights(self, context: Any, _criteria: Any) -> Iterator[Any]:
        with self._serving(context, "a list of variables") as listener:
            listener.let_read(context, "list the variables")
            infos = [variables.describe(tensor, listener.scheme) for tensor in listener.handler.tensors()]
        return iter(infos)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with self._serving(context, "a look at a variable") as listener:
            listener.let_read(context, "look at a variable")
            return variables.info_of(listener.handler, descriptor, listener.scheme)

    def do_get(self, context: Any, ticket: Any) -> Any:
        with self._serving(context, "a read of a variable") as listener:
            listener.let_read(context, "read a variable")
            return variables.read(listener.handler, ticket.ticket)

    def do_put(self, context: Any, _descriptor: Any, _reader: Any, _writer: Any) -> None:
        with self._serving(context, "an assignment of a variable") as listener:  # nothing of it is read
            raise Refused(
                f"{listener.address} does not let variables be assigned from outside: only the chief's own stream may."
            )


class FlightListener:
    """A Flight server for one handler.

    Args:
      address: where to serve.
      handler: what answers.
      timeouts: how long to wait for what.
      door: name of the shared-memory door beside it, empty where there is none.
      actions: control calls that are not the handler's.
      security: as whom it serves, and how it knows its callers.
      limits: what its peers may take.
      say: where it says whom it has refused.

    Raises:
      AddressInUse: another process has the port.
      ClusterError: the address is not one of this machine.
    """

    def __init__(
        self,
        address: str,
        handler: Handler,
        timeouts: Timeouts,
        door: str = "",
        *,
        actions: Mapping[str, Callable[[bytes, Caller], bytes]] = _NO_ACTIONS,
        security: Security = OPEN,
        limits: ConnectionLimits = _LIMITS,
        say: Say = say_on_stderr,
    ) -> None:
        host, _ = ports.split(address)
        self.handler = handler
        self.scheme = "grpc+tcp" if security.tls is None else "grpc+tls"
        """Of its address."""
        self.complete = threading.Event()
        """Set when calls can be answered: the server serves as soon as it is made."""
        self._timeouts = timeouts
        self._stopping = threading.Event()
        self._stop_lock = threading.Lock()
        self._pulse: Pulse[ExchangeStream] = Pulse(address, timeouts.heartbeat_s / 2)
        self._incarnation = secrets.token_hex(8)
        self._door = door
        self._actions = actions
        self._security = security
        self._limits = limits
        self._side = ListenerSide(
            security.secret, replace(security.identity, incarnation=self._incarnation), time.monotonic
        )
        self._calls = Allowance(limits.calls_per_s, limits.call_burst)
        self._greetings = Allowance(limits.greetings_per_s, limits.greeting_burst)
        self._unopened: Counter[str] = Counter()
        self._address = address
        self._refusals = Refusals(say, address)
        ports.check(address)
        try:
            self._server = _Server(f"{self.scheme}://{address}", self, security)
        except (pa.ArrowException, OSError):
            # The address was free a moment ago: somebody was faster.
            raise ports.taken(address) from None
        self._address = self._refusals.address = ports.join(host, self._server.port)
        # Where nobody proves anything, the first call may be as large as any.
        strict = limits if security.seals else replace(limits, stranger_bytes=sys.maxsize)
        self._doorkeeper = Doorkeeper(self._server.port, strict, self._refusals)
        self.complete.set()
        # Nor may its destructor run then, which waits too: what the frame of a daemon thread holds is never freed.
        _leave_at_exit(self._server)
        keeper = threading.Thread(target=self._server.wait, name=f"trainband-serve-{self._address}", daemon=True)
        keeper.start()
        # A handler that is woken in an interpreter that has ended aborts the process: they end before that.
        atexit.register(self.stop, timeouts.grace_s)

    @property
    def address(self) -> str:
        return self._address

    def is_stopping(self) -> bool:
        """Whether `stop` was called: nothing new is served."""
        return self._stopping.is_set()

    # --- who may come in

    def note_refusal(self, peer: str, refused: Refused) -> None:
        """Says that a peer was refused, where that is for the people who run the job to know."""
        if refused.code in (RefusalCode.UNPROVED, RefusalCode.FORBIDDEN, RefusalCode.BUSY):
            self._refusals.note(peer, str(refused))

    def act(self, peer: str, certificate: bytes, action: str, body: Any) -> bytes:
        """Answers one control call of a connection."""
        certified = self._certified(certificate)
        if action in handshake.OPEN_ACTIONS:
            return self._greet(peer, certified, action, body.to_pybytes())
        if not self._calls.take(peer, time.monotonic()):
            raise Refused(
                f"more than {self._limits.calls_per_s:g} calls a second come on one connection.", RefusalCode.BUSY
            )
        sealed = self._let_in(action, body.to_pybytes(), peer, certified)
        if action == handshake.DOOR:
            answered = encode(Door(incarnation=self._incarnation, door=self._door))
        elif action in self._actions:
            answered = self._actions[action](sealed.body, Caller(peer, sealed.caller.identity))
        else:
            answered = answer(self.handler, action, sealed.body, self._address, sealed.caller)
        if sealed.session is None:
            return answered
        return self._side.seal_answer(sealed.session, sealed.counter, answered)

    def _greet(self, peer: str, certified: Identity | None, action: str, body: bytes) -> bytes:
        if not self._greetings.take(ports.host_of(peer), time.monotonic()):
            raise Refused(f"more than {self._limits.greetings_per_s:g} greetings a second come.", RefusalCode.BUSY)
        if action == handshake.HELLO:
            asked = decode(body, HelloRequest, peer)
            if self._security.seals:
                return encode(self._side.hello(asked))
            self._doorkeeper.admit(peer)
            return encode(Hello(protocol=handshake.PROTOCOL, incarnation=self._incarnation, door=self._door))
        proof = decode(body, Prove, peer)
        if not self._security.seals:
            raise Refused(f"{self._address} asks nobody for a proof.")
        session = self._side.prove(proof, peer, certified)
        self._doorkeeper.admit(peer)
        return encode(Proved(session=session.number))

    def _certified(self, certificate: bytes) -> Identity | None:
        tls = self._security.tls
        return None if tls is None else tls.certified(certificate)

    def _let_in(self, action: str, body: bytes, peer: str | None, certified: Identity | None) -> _Sealed:
        """Who makes a call; `peer`: the connection that it came over, if it came over one."""
        if not self._security.seals:
            if peer is not None:
                self._doorkeeper.admit(peer)
            return _Sealed(ANYBODY, body)
        session, counter, opened = self._side.open(action, body, peer)
        if certified is not None and not certified.covers(session.identity.name):
            raise AuthenticationError(f"a session of {session.identity.name} was used by {certified.name}.")
        return _Sealed(Caller(session.peer, session.identity), opened, session, counter)

    def caller_of(self, ticket: bytes) -> Caller:
        """Who opens a stream of this machine with this ticket, which it got over a connection of its own."""
        return self._let_in(handshake.STREAM, ticket, None, None).caller

    def let_read(self, context: Any, doing: str) -> None:
        """Raises `Refused` where whoever is connected may not read; any Flight client may be that."""
        peer = _peer_name(context.peer())
        if not self._calls.take(peer, time.monotonic()):
            raise Refused(
                f"more than {self._limits.calls_per_s:g} calls a second come on one connection.", RefusalCode.BUSY
            )
        identity = self._certified(context.peer_identity())
        if self._security.seals and identity is None:
            identity = self._side.identity_of(peer)
            if identity is None:
                raise AuthenticationError(
                    "whoever reads variables proves first that it belongs to the job: see trainband.prove."
                )
        Caller(peer, identity).require(_READERS, doing)
        self._doorkeeper.admit(peer)

    # --- streams

    def serve_stream(self, peer: str, certificate: bytes, ticket: bytes, reader: Any, writer: Any) -> None:
        """Serves one exchange in the thread of its call."""
        caller = self._let_in(handshake.STREAM, ticket, peer, self._certified(certificate)).caller
        host = ports.host_of(peer)
        with self._stop_lock:
            if self._unopened[host] >= self._limits.unopened_streams_per_host:
                raise Refused(f"{host} has opened too many streams that say nothing.", RefusalCode.BUSY)
            self._unopened[host] += 1
        opened = False

        def note_opened() -> None:
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
                opened=note_opened,
            )
            # Whoever opens a stream and says nothing is cut off.
            stream.abort_at = time.monotonic() + self._timeouts.connect_s
            self._pulse.add(stream)
            try:
                stream.greet()
                stream.end_stream(serve(self.handler, stream, self._address, caller))
            finally:
                self._pulse.remove(stream)
        finally:
            note_opened()

    def stop(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        with self._stop_lock:
            if self._stopping.is_set():
                return
            self._stopping.set()
        atexit.unregister(self.stop)
        for stream in self._pulse.streams():
            stream.wake()
        # In a thread of its own, because gRPC waits for open streams however long they stay. A thread that is
        # given up holds the server, so that no destructor waits for them either when the process ends.
        server = self._server
        shutdown = threading.Thread(target=server.shutdown, name=f"trainband-stop-{self._address}", daemon=True)
        shutdown.start()
        shutdown.join(0.8 * grace_s)
        if shutdown.is_alive():
            # Also those without a stream: gRPC waits until every client has heard its end.
            cut(server.port)
            shutdown.join(max(0.0, deadline - time.monotonic()))
        self._pulse.close()
        self._doorkeeper.close()
