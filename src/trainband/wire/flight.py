"""Arrow Flight: how trainband talks between machines, and its face to any other Flight client.

The only file that knows `pyarrow.flight`. Control calls are DoAction, streams are DoExchange (`exchange.py`),
and the variables can be listed, read and written by clients that know nothing of trainband:

    client = pyarrow.flight.connect("grpc://10.0.0.7:2222")
    for info in client.list_flights():
        print(info.descriptor.path, info.schema)
    table = client.do_get(pyarrow.flight.Ticket("hidden/kernel")).read_all()
    kernel = table["values"].combine_chunks().to_numpy_ndarray()
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import re
import secrets
import socket
import stat
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from ..errors import (
    DeadlineExceeded,
    NobodyListens,
    PeerError,
    ProtocolError,
    RefusalCode,
    Refused,
    StreamClosed,
    Unreachable,
)
from . import port as ports
from .codec import decode
from .columns import read_tensor, tensor_batches, tensor_schema
from .exchange import ClientStream, ExchangeStream, Pulse
from .outbox import BODY_SCHEMA
from .serving import answer, closed_here, refusal, serve
from .transport import Connection, Handler, Listener, Stream, Tensor, Timeouts

logger = logging.getLogger(__name__)

PROTOCOL = 1
"""Version of what this folder sends. Two tasks must have the same."""

HELLO = "trainband.hello"
_STREAM = b"trainband.stream"

_CLIENT_OPTIONS = [
    # How far the listener may send ahead of our reads. gRPC's own guess starts at 64 KiB: this raises 400 MB
    # each way from 2.0 to 3.6 GB/s, and lets two frames be sent before the first answer is read.
    ("grpc.http2.lookahead_bytes", 64 << 20),
    # Tasks are addressed directly; a proxy set for web access must not stand between them.
    ("grpc.enable_http_proxy", 0),
]

# A message of gRPC's trailers must fit into 8 KiB, twice and in base64.
_MESSAGE_LIMIT = 2000


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who listens: the answer to the first question on every connection."""

    protocol: int
    incarnation: str
    """New for every listener: tells a task that was restarted from the one before."""
    local: str = ""
    """Name of the listener's shared-memory door, empty where it has none."""


def translate(exc: Exception, address: str, timeout_s: float | None = None) -> PeerError:
    """The error of ours for any error that Arrow Flight raises; nothing of gRPC's text is for users."""
    told = bytes(getattr(exc, "extra_info", b"") or b"").decode(errors="replace")
    if told and isinstance(exc, flight.FlightError):
        code, _, message = told.partition("\n")
        return Refused(message, RefusalCode(code) if code in _CODES else RefusalCode.OTHER)
    if isinstance(exc, flight.FlightUnavailableError):
        if _UNRESOLVED.search(str(exc)):
            return ports.unknown_host(address)
        kind = NobodyListens if "Connection refused" in str(exc) else Unreachable
        return kind(f"nobody listens at {address}; check that the task runs and that the address is right.")
    if isinstance(exc, flight.FlightTimedOutError):
        waited = "in time" if timeout_s is None else f"in {timeout_s:g} s"
        return DeadlineExceeded(f"{address} gave no answer {waited}; check that it runs, or wait for longer.")
    if isinstance(exc, (flight.FlightCancelledError, pa.ArrowCancelled)):
        return StreamClosed(f"the stream to {address} was cut.")
    if isinstance(exc, (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError)):
        return Refused(f"{address} does not let us in.")
    text = str(exc).partition(". gRPC client debug context")[0].partition("\n")[0]
    return ProtocolError(f"{address} answered in a way that trainband does not understand: {text}")


def translate_stream(exc: Exception, address: str) -> PeerError:
    """As `translate`, for a stream that was open: there, whoever is not there any more has closed it."""
    error = translate(exc, address)
    if isinstance(error, (Refused, ProtocolError)):
        return error
    return StreamClosed(f"{address} has gone; its process ended or the network broke.")


_CODES = frozenset(RefusalCode)
_UNRESOLVED = re.compile(r"errors? resolving |DNS resolution failed")
"""What gRPC's resolvers say where a name has no address; gRPC has no code for it."""


def _refuse(refused: Refused) -> flight.FlightError:
    message = str(refused)
    if len(message) > _MESSAGE_LIMIT:
        message = message[: _MESSAGE_LIMIT - 2] + " …"
    # The extra information, a code and the message, reaches a trainband client as it is; gRPC decorates the message.
    return flight.FlightServerError(message, extra_info=f"{refused.code}\n{message}".encode())


def _peer_name(peer: str) -> str:
    """`host:port` of gRPC's `ipv4:host:port` or `ipv6:%5Bhost%5D:port`."""
    return peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]")


def _cut(port: int, peer: str = "") -> None:
    """Breaks the TCP connections of our `port`, or only that with `peer`, which ends all that is blocked on them.

    Python can neither cancel a Flight call at the server nor see gRPC's sockets. But they are ours, and
    shutdown(2) on any descriptor of a socket ends it. A client has one connection of its own.
    """
    descriptors = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    for name in os.listdir(descriptors):  # noqa: PTH208 - numbers, not paths
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):  # noqa: PTH116 - a number, not a path
                continue
            # Not socket.fromfd: told the wrong family it gives wrong addresses.
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if connection.getsockname()[1] == port:
                    host, number = connection.getpeername()[:2]
                    if peer in ("", ports.join(host.removeprefix("::ffff:"), number)):
                        connection.shutdown(socket.SHUT_RDWR)


def _leave_at_exit(server: flight.FlightServerBase) -> None:
    """Takes back that pyarrow shuts a server down as the interpreter ends.

    It does so by `weakref.finalize` and would wait there for every open call, however long that takes. There is
    no public way to the finalizer of an object; where the private one has gone, the interpreter waits.
    """
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and found[0] is server:
            finalizer.atexit = False


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Flight's calls to us. Starts to serve when made."""

    def __init__(self, location: str, listener: FlightListener) -> None:
        self._listener = listener
        super().__init__(location)

    @contextlib.contextmanager
    def _serving(self, doing: str) -> Iterator[Handler]:
        """Around each call: waits for the listener to be complete, makes refusals of exceptions."""
        if self._listener.is_stopping():
            raise flight.FlightUnavailableError("stopping")
        try:
            yield self._listener.handler
        except flight.FlightError:
            raise
        except Exception as exc:
            raise _refuse(refusal(exc, doing, self._listener.address)) from exc

    def do_action(self, _context: Any, action: Any) -> list[Any]:
        with self._serving(f"the call {action.type!r}") as handler:
            if action.type == HELLO:
                return [flight.Result(msgspec.msgpack.encode(self._listener.hello))]
            return [flight.Result(answer(handler, action.type, action.body.to_pybytes(), self._listener.address))]

    def list_actions(self, _context: Any) -> list[Any]:
        return [flight.ActionType(HELLO, "who listens here")]

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._serving("a stream"):
            if descriptor.command != _STREAM:
                raise Refused(f"{self._listener.address} exchanges trainband streams and nothing else.")
            self._listener.serve_stream(context.peer(), reader, writer)

    def list_flights(self, _context: Any, _criteria: Any) -> Iterator[Any]:
        with self._serving("a list of variables") as handler:
            infos = [_flight_info(tensor) for tensor in handler.tensors()]
        return iter(infos)

    def get_flight_info(self, _context: Any, descriptor: Any) -> Any:
        with self._serving("a look at a variable") as handler:
            return _flight_info(_find(handler, _name(descriptor)))

    def do_get(self, _context: Any, ticket: Any) -> Any:
        with self._serving("a read of a variable") as handler:
            name = ticket.ticket.decode(errors="replace")
            first_row, values = handler.read(name)
            schema = tensor_schema(name, values.shape, str(values.dtype))
            schema = schema.with_metadata({**schema.metadata, b"trainband.first_row": str(first_row).encode()})
            return flight.GeneratorStream(schema, tensor_batches(schema, values))

    def do_put(self, _context: Any, descriptor: Any, reader: Any, _writer: Any) -> None:
        with self._serving("an assignment of a variable") as handler:
            name = _name(descriptor)
            known = next((tensor for tensor in handler.tensors() if tensor.name == name), None)
            table = reader.read_all()
            dtype, shape = (None, None) if known is None else (known.dtype, known.shape)
            handler.write(name, read_tensor(table, dtype, shape))


def _name(descriptor: Any) -> str:
    if descriptor.descriptor_type != flight.DescriptorType.PATH or not descriptor.path:
        raise Refused("a variable is named by a descriptor path of one part, such as [hidden/kernel].")
    return b"/".join(descriptor.path).decode(errors="replace")


def _find(handler: Handler, name: str) -> Tensor:
    for tensor in handler.tensors():
        if tensor.name == name:
            return tensor
    raise Refused(f"there is no variable {name!r} here.")


def _flight_info(tensor: Tensor) -> Any:
    schema = tensor_schema(tensor.name, tensor.shape, tensor.dtype)
    width = schema.field("values").type.value_type.bit_width // 8
    return flight.FlightInfo(
        schema,
        flight.FlightDescriptor.for_path(tensor.name),
        [
            flight.FlightEndpoint(tensor.name.encode(), [f"grpc+tcp://{address}"])
            for _first, _end, address in tensor.slices
        ],
        tensor.shape[0] if tensor.shape else 1,
        math.prod(tensor.shape) * width,
    )


class FlightListener:
    """A Flight server for one handler."""

    def __init__(self, address: str, handler: Handler, timeouts: Timeouts, local: str = "") -> None:
        host, _ = ports.split(address)
        self.handler = handler
        self._timeouts = timeouts
        self._stopping = threading.Event()
        self._stop_lock = threading.Lock()
        self._pulse = Pulse(address, timeouts.heartbeat_s / 2)
        self.hello = Hello(protocol=PROTOCOL, incarnation=secrets.token_hex(8), local=local)
        self._address = address
        ports.check(address)
        try:
            self._server = _Server(f"grpc+tcp://{address}", self)
        except (pa.ArrowException, OSError):
            # The address was free a moment ago: somebody was faster.
            raise ports.taken(address) from None
        self._address = ports.join(host, self._server.port)
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

    def serve_stream(self, peer: str, reader: Any, writer: Any) -> None:
        """Serves one exchange in the thread of its call."""
        writer.begin(BODY_SCHEMA)
        name = _peer_name(peer)
        stream = ExchangeStream(
            reader,
            writer,
            peer=name,
            timeouts=self._timeouts,
            abort=lambda: _cut(self._server.port, name),
            translate=lambda exc: translate_stream(exc, name),
            is_stopping=self.is_stopping,
        )
        self._pulse.add(stream)
        try:
            stream.greet()
            stream.end_stream(serve(self.handler, stream, self._address))
        finally:
            self._pulse.remove(stream)

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
            _cut(server.port)
            shutdown.join(max(0.0, deadline - time.monotonic()))
        self._pulse.close()


class FlightConnection:
    """A client's channel to one listener."""

    def __init__(self, address: str, timeouts: Timeouts) -> None:
        ports.split(address)
        self._address = address
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._client: Any = None
        self._streams: set[ClientStream] = set()
        self._pulse = Pulse(address, timeouts.heartbeat_s / 2)
        self._closed = False

    @property
    def address(self) -> str:
        return self._address

    def _connected(self) -> Any:
        with self._lock:
            if self._closed:
                raise closed_here(self._address)
            if self._client is None:
                self._client = flight.FlightClient(f"grpc+tcp://{self._address}", generic_options=_CLIENT_OPTIONS)
            return self._client

    def _disconnected(self, client: Any) -> None:
        # A gRPC channel that failed to connect refuses calls without another try, for longer each time,
        # up to two minutes. A new channel tries at once.
        with self._lock:
            if self._client is client and not self._streams:
                self._client = None

    def call(self, action: str, body: bytes = b"", *, timeout_s: float) -> bytes:
        client = self._connected()
        try:
            results = list(client.do_action(flight.Action(action, body), flight.FlightCallOptions(timeout=timeout_s)))
        except (pa.ArrowException, flight.FlightError, OSError) as exc:
            error = translate(exc, self._address, timeout_s)
            logger.debug("%s did not answer %r: %s", self._address, action, exc)
            if isinstance(error, Unreachable):
                self._disconnected(client)
            raise error from exc
        if len(results) != 1:
            raise ProtocolError(f"{self._address} gave {len(results)} answers to {action!r} instead of one.")
        return bytes(results[0].body.to_pybytes())

    def hello(self, *, timeout_s: float) -> Hello:
        """Asks who listens.

        Raises:
          ProtocolError: somebody with whom we cannot talk.
        """
        answered = self.call(HELLO, timeout_s=timeout_s)
        try:
            hello = decode(answered, Hello, self._address)
        except ProtocolError as exc:
            raise ProtocolError(f"{self._address} is no trainband task: {exc.__cause__}.") from exc
        if hello.protocol != PROTOCOL:
            raise ProtocolError(
                f"{self._address} speaks version {hello.protocol} of trainband's protocol, this task version "
                f"{PROTOCOL}; install the same trainband for all tasks."
            )
        return hello

    def open_stream(self, *, timeout_s: float) -> Stream:
        deadline = time.monotonic() + timeout_s
        # Also finds out, with a deadline that gRPC keeps, whether anybody is there.
        self.hello(timeout_s=timeout_s)
        try:
            writer, reader = self._connected().do_exchange(flight.FlightDescriptor.for_command(_STREAM))
            writer.begin(BODY_SCHEMA)
        except (pa.ArrowException, flight.FlightError, OSError) as exc:
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
        self._pulse.add(stream)
        try:
            stream.await_greeting(max(0.001, deadline - time.monotonic()))
        except BaseException:
            stream.close()
            raise
        return stream

    def _forget(self, stream: ClientStream) -> None:
        self._pulse.remove(stream)
        with self._lock:
            self._streams.discard(stream)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
            streams = list(self._streams)
        for stream in streams:
            stream.close()
        self._pulse.close()
        if client is not None:
            with contextlib.suppress(pa.ArrowException, OSError):
                client.close()


class FlightTransport:
    """Arrow Flight for calls and streams."""

    def listen(self, address: str, handler: Handler, timeouts: Timeouts) -> Listener:
        return FlightListener(address, handler, timeouts)

    def connect(self, address: str, timeouts: Timeouts) -> Connection:
        return FlightConnection(address, timeouts)
