"""The in-memory transport: tasks are threads of one process, with the semantics of the real ones."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import numpy as np
from numpy.typing import NDArray

from trainband.cluster.identity import Identity
from trainband.errors import AddressInUse, DeadlineExceeded, NobodyListens, Unreachable
from trainband.wire.arena import Arena, as_bytes
from trainband.wire.frame import Bytes, Frame
from trainband.wire.handling import answer, closed_here, ended, not_taken, serve, stopping, too_large
from trainband.wire.limits import LIMITS
from trainband.wire.transport import Connection, Handler, Listener, Stream, Timeouts

_DEPTH = 16
"""Number of frames in flight in one direction before `send` waits for the other end."""


class _Pipe:
    """One direction of a stream."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.frames: deque[tuple[bytes, tuple[Bytes, ...]]] = deque()
        self.ended: str | None = None  # the sender's reason
        self.abandoned = False  # the receiver has closed
        self.stopping = False  # the receiver only takes what is already here


class _MemoryStream:
    """One end of a stream."""

    def __init__(self, peer: str, outgoing: _Pipe, incoming: _Pipe, stall_s: float, outlives_sender: bool) -> None:
        self.most_bytes = LIMITS.frame_bytes
        self._peer = peer
        self._outlives_sender = outlives_sender
        self._outgoing = outgoing
        self._incoming = incoming
        self._stall_s = stall_s
        self._arena = Arena()

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def transport(self) -> str:
        return "memory"

    @property
    def silent_s(self) -> float:
        return 0.0

    @property
    def moved_s(self) -> float:
        return math.inf  # a frame arrives as a whole

    @property
    def alive(self) -> bool:
        return self._incoming.ended is None and not self._incoming.abandoned

    @property
    def outlives_sender(self) -> bool:
        return self._outlives_sender

    def send(self, header: bytes, body: Sequence[NDArray[np.generic]] = ()) -> None:
        # Copied here, because the caller may overwrite the arrays at once, and again into the other
        # end's arena, because a body is only lent to it: as on a network.
        item = (bytes(header), tuple(as_bytes(array).copy() for array in body))
        pipe = self._outgoing
        with pipe.changed:
            if not pipe.changed.wait_for(
                lambda: len(pipe.frames) < _DEPTH or pipe.abandoned or pipe.stopping or pipe.ended is not None,
                self._stall_s,
            ):
                raise not_taken(self._peer, self._stall_s)
            if pipe.ended is not None:
                raise closed_here(self._peer)
            if pipe.abandoned or pipe.stopping:
                raise ended(self._peer, self._incoming.ended or "")
            pipe.frames.append(item)
            pipe.changed.notify_all()

    def receive(self, timeout_s: float) -> Frame | None:
        pipe = self._incoming
        with pipe.changed:
            if pipe.abandoned:
                raise closed_here(self._peer)
            pipe.changed.wait_for(
                lambda: pipe.frames or pipe.ended is not None or pipe.abandoned or pipe.stopping, timeout_s
            )
            if pipe.abandoned:
                raise closed_here(self._peer)
            if not pipe.frames:
                if pipe.ended is not None:
                    raise ended(self._peer, pipe.ended)
                if pipe.stopping:
                    raise stopping("this listener")
                return None
            header, body = pipe.frames.popleft()
            pipe.changed.notify_all()
        nbytes = sum(array.size for array in body)
        if nbytes > self.most_bytes:
            self.end("")
            raise too_large(self._peer, nbytes, self.most_bytes)
        views = self._arena.views(tuple(array.size for array in body))
        for view, array in zip(views, body, strict=True):
            np.copyto(view, array)
        return Frame(header, views)

    def close(self) -> None:
        self.end("")

    def interrupt(self) -> None:
        self.end("")

    def end(self, reason: str) -> None:
        for pipe, mine in ((self._outgoing, True), (self._incoming, False)):
            with pipe.changed:
                if mine and pipe.ended is None:
                    pipe.ended = reason
                elif not mine:
                    pipe.abandoned = True
                pipe.changed.notify_all()

    def refuse_more(self) -> None:
        with self._incoming.changed:
            self._incoming.stopping = True
            self._incoming.changed.notify_all()


class _MemoryListener:
    def __init__(self, transport: MemoryTransport, address: str, handler: Handler, timeouts: Timeouts) -> None:
        self._transport = transport
        self._address = address
        self._handler = handler
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._stopped = False
        self._serving: dict[threading.Thread, _MemoryStream | None] = {}

    @property
    def address(self) -> str:
        return self._address

    def _start(self, name: str, work: threading.Thread, stream: _MemoryStream | None) -> None:
        with self._lock:
            if self._stopped:
                raise _nobody(self._address)
            work.name = f"trainband-memory-{name}"
            self._serving[work] = stream
            work.start()

    def _done(self) -> None:
        with self._lock:
            self._serving.pop(threading.current_thread(), None)

    def answer(self, action: str, body: bytes) -> Future[bytes]:
        """Starts to answer a call, in its own thread, as a server would."""
        future: Future[bytes] = Future()

        def work() -> None:
            try:
                future.set_result(answer(self._handler, action, body, self._address))
            except Exception as exc:
                future.set_exception(exc)
            finally:
                self._done()

        self._start("call", threading.Thread(target=work, daemon=True), None)
        return future

    def open_stream(self, caller: str) -> _MemoryStream:
        """Creates a stream and starts the handler on its other end."""
        up, down = _Pipe(), _Pipe()
        stall_s, outlives_sender = self._timeouts.stall_s, self._transport.outlives_sender
        ours = _MemoryStream(caller, down, up, stall_s, outlives_sender)
        theirs = _MemoryStream(self._address, up, down, stall_s, outlives_sender)

        def work() -> None:
            try:
                ours.end(serve(self._handler, ours, self._address))
            finally:
                self._done()

        self._start("stream", threading.Thread(target=work, daemon=True), ours)
        return theirs

    def stop(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        with self._lock:
            self._stopped = True
            serving = dict(self._serving)
        self._transport.forget(self)
        for stream in serving.values():
            if stream is not None:
                stream.refuse_more()
        for thread in serving.keys() - {threading.current_thread()}:
            thread.join(max(0.0, deadline - time.monotonic()))
        for stream in serving.values():
            if stream is not None:
                stream.end(f"{self._address} has stopped.")


class _MemoryConnection:
    def __init__(self, transport: MemoryTransport, address: str, name: str) -> None:
        self._transport = transport
        self._address = address
        self._name = name
        self._streams: list[_MemoryStream] = []
        self._closed = False

    @property
    def address(self) -> str:
        return self._address

    def _listener(self) -> _MemoryListener:
        if self._closed:
            raise closed_here(self._address)
        return self._transport.find(self._address)

    def call(self, action: str, body: bytes = b"", *, timeout_s: float) -> bytes:
        try:
            return self._listener().answer(action, bytes(body)).result(timeout_s)
        except FutureTimeoutError as exc:
            raise DeadlineExceeded(f"{self._address} gave no answer to {action!r} in {timeout_s} s.") from exc

    def open_stream(self, *, timeout_s: float) -> Stream:  # noqa: ARG002 - memory never has to wait
        stream = self._listener().open_stream(self._name)
        self._streams.append(stream)
        return stream

    def close(self) -> None:
        self._closed = True
        for stream in self._streams:
            stream.close()


class MemoryTransport:
    """Listeners and connections within one process; each instance is a separate network.

    Args:
      outlives_sender: value of `Stream.outlives_sender`; `False` as between machines.
    """

    def __init__(self, *, outlives_sender: bool = True) -> None:
        self.outlives_sender = outlives_sender
        self._lock = threading.Lock()
        self._listeners: dict[str, _MemoryListener] = {}
        self._ports = itertools.count(1)
        self._names = itertools.count(1)

    def listen(self, address: str, handler: Handler, timeouts: Timeouts) -> Listener:
        with self._lock:
            host, _, port = address.rpartition(":")
            if port == "0":
                taken = self._listeners.keys()
                address = next(free for n in self._ports if (free := f"{host}:{n}") not in taken)
            if address in self._listeners:
                raise AddressInUse(f"{address} is taken by another listener of this process.")
            listener = _MemoryListener(self, address, handler, timeouts)
            self._listeners[address] = listener
            return listener

    def connect(self, address: str, timeouts: Timeouts) -> Connection:  # noqa: ARG002 - nothing to wait for
        return _MemoryConnection(self, address, f"memory client {next(self._names)}")

    def speaking_as(self, identity: Identity) -> MemoryTransport:  # noqa: ARG002 - not checked within a process
        return self

    def find(self, address: str) -> _MemoryListener:
        """Returns the listener at an address.

        Raises:
          Unreachable: there is none.
        """
        with self._lock:
            listener = self._listeners.get(address)
        if listener is None:
            raise _nobody(address)
        return listener

    def forget(self, listener: _MemoryListener) -> None:
        """Frees the address of a stopping listener."""
        with self._lock, contextlib.suppress(KeyError):
            if self._listeners[listener.address] is listener:
                del self._listeners[listener.address]


def _nobody(address: str) -> Unreachable:
    return NobodyListens(f"nothing listens at {address}; check that the task runs and that the address is right.")
