"""Where streams over UCX come in, and how one is opened.

Both ends tell each other over the Flight connection, on which they have proved who they are, how they are reached and
which key the stream's messages bear. Whoever does not know the key is not listened to.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from ...errors import (
    DeadlineExceeded,
    RefusalCode,
    Refused,
    ResourceExhausted,
    TransportUnavailable,
)
from ...runtime.limits import start_thread
from ..codec import decode, encode
from ..fields import Text
from ..pulse import Pulse
from ..serving import serve
from ..transport import Caller, Handler, Timeouts
from .context import UcxContext, ucx
from .frames import Kind
from .pipe import KINDS, Broken, Pipe
from .stream import UcxStream

OPEN = "trainband.ucx"
"""The control call by which a client asks for a stream."""

StreamPulse = Pulse[UcxStream]

_MOST_GUESTS = 1024
"""Streams that a door serves at a time."""
_KEY_BITS = 64 - KINDS
_Address = Annotated[bytes, Meta(min_length=1, max_length=64 << 10)]


class Ask(Struct, frozen=True, kw_only=True):
    """`trainband.ucx` -> `Granted`: a client wants a stream."""

    version: Text
    """Of its UCX."""
    address: _Address
    """Of its worker."""
    key: Annotated[int, Meta(ge=0, lt=1 << _KEY_BITS)]
    """Random, for this one stream: what its messages are known by."""


class Granted(Struct, frozen=True, kw_only=True):
    """Where the stream's other end is."""

    address: _Address


def _usable() -> UcxContext:
    try:
        return ucx()
    except TransportUnavailable as exc:
        raise TransportUnavailable(f"cannot take streams over UCX: {exc}") from exc


def same_version(mine: str, theirs: str) -> bool:
    """Whether two UCX understand each other: what they send may change with every minor version."""
    return mine.split(".")[:2] == theirs.split(".")[:2]


def _never() -> bool:
    return False


def _clear(pipe: Pipe, kind: Kind, given_up: Callable[[], bool] = _never) -> Callable[[], bool]:
    """Whether the first message of a kind has come, or never will."""

    def came() -> bool:
        if handle := pipe.find(kind):
            pipe.accept(handle, 0, 0)
            return True
        return pipe.failure is not None or given_up()

    return came


def no_door(_body: bytes, _caller: Caller) -> bytes:
    """Answers `OPEN` where there is no door."""
    raise Refused(
        "takes no streams over UCX: it has no UCX, has certificates, or was told to use another transport.",
        RefusalCode.NO_UCX,
    )


class UcxDoor:
    """Where UCX streams of one listener come in.

    Args:
      handler: serves them.
      timeouts: how long to wait for what.
      is_wanted: whether streams must come this way: then the lack of UCX is an error at once.

    Raises:
      TransportUnavailable: they must, and this machine has no usable UCX.
    """

    def __init__(self, handler: Handler, timeouts: Timeouts, *, is_wanted: bool = False) -> None:
        self.address = ""
        """Of the listener this is a door of, for messages."""
        self._handler = handler
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._serving: dict[threading.Thread, UcxStream | Pipe] = {}
        self._pulse: StreamPulse = Pulse("ucx", timeouts.heartbeat_s / 2)
        self._stopping = False
        if is_wanted:
            ucx()

    def open(self, body: bytes, caller: Caller) -> bytes:
        """Answers `OPEN`.

        Raises:
          Refused: nothing comes in this way.
        """
        ask = decode(body, Ask, caller.peer)
        try:
            context = _usable()
            if not same_version(context.library.version_text, ask.version):
                raise TransportUnavailable(
                    f"has UCX {context.library.version_text}, the other end UCX {ask.version}: they may not understand "
                    "each other; install the same version on both."
                )
            pipe = Pipe(context, ask.key)
        except TransportUnavailable as exc:
            raise Refused(str(exc), RefusalCode.NO_UCX) from exc
        try:
            granted = encode(Granted(address=pipe.address))
            self._start(pipe, ask.address, caller)
        except BaseException:
            pipe.destroy()
            raise
        return granted

    def _start(self, pipe: Pipe, address: bytes, caller: Caller) -> None:
        thread = threading.Thread(
            target=self._serve, args=(pipe, address, caller), name=f"trainband-ucx-{self.address}", daemon=True
        )
        with self._lock:
            if self._stopping:
                raise Refused(f"{self.address} is stopping.")
            if len(self._serving) >= _MOST_GUESTS:
                raise Refused(f"{self.address} serves {_MOST_GUESTS:,} streams over UCX already.", RefusalCode.BUSY)
            try:
                start_thread(thread)
            except ResourceExhausted as exc:
                logging.getLogger("trainband.wire").error("%s serves no more streams: %s", self.address, exc)
                raise Refused(str(exc)) from exc
            self._serving[thread] = pipe

    def _serve(self, pipe: Pipe, address: bytes, caller: Caller) -> None:
        me = threading.current_thread()
        try:
            stream = self._welcome(pipe, address, caller)
            if stream is None:
                return
            with self._lock:
                self._serving[me] = stream
                if self._stopping:
                    stream.stop_receiving()
            self._pulse.add(stream)
            reason = serve(self._handler, stream, self.address, caller)
            self._pulse.remove(stream)
            stream.end(reason)
        finally:
            pipe.destroy()
            with self._lock:
                self._serving.pop(me, None)

    def _welcome(self, pipe: Pipe, address: bytes, caller: Caller) -> UcxStream | None:
        """The stream, once the client has come; `None` where it does not."""
        try:
            came = pipe.wait(_clear(pipe, Kind.HELLO, lambda: self._stopping), self._timeouts.connect_s)
            if not came or self._stopping or pipe.failure is not None:
                return None
            with pipe.lock:
                pipe.connect(address)
                pipe.send(Kind.WELCOME, 0, 0)
        except (Broken, TransportUnavailable) as exc:
            logging.getLogger("trainband.wire").warning("%s: no stream over UCX: %s", self.address, exc)
            return None
        return UcxStream(pipe, caller.peer or "a client over UCX", self._timeouts, lambda _stream: None)

    def stop(self, grace_s: float) -> None:
        """As `Listener.stop`."""
        deadline = time.monotonic() + grace_s
        with self._lock:
            self._stopping = True
            serving = dict(self._serving)
        streams = [stream for stream in serving.values() if isinstance(stream, UcxStream)]
        for stream in streams:
            stream.stop_receiving()
        for pipe in serving.values():
            if isinstance(pipe, Pipe):
                pipe.wake()
        others = serving.keys() - {threading.current_thread()}
        soon = time.monotonic() + 0.8 * grace_s
        for thread in others:
            thread.join(max(0.0, soon - time.monotonic()))
        for stream in streams:
            stream.interrupt()
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._pulse.close()


def open_ucx_stream(
    call: Callable[[bytes, float], bytes],
    peer: str,
    timeouts: Timeouts,
    timeout_s: float,
    forget: Callable[[UcxStream], None],
) -> UcxStream:
    """Opens a stream through the door of a listener.

    Args:
      call: makes the control call `OPEN` with this body, within so many seconds.
      peer: the listener's address, for messages.
      forget: called when the stream is closed.

    Raises:
      TransportUnavailable: one of the two has no UCX, or they have no network in common.
      DeadlineExceeded: the listener is there, but cannot be reached over UCX.
    """
    deadline = time.monotonic() + timeout_s
    context = ucx()
    key = secrets.randbits(_KEY_BITS)
    pipe = Pipe(context, key)
    try:
        ask = Ask(version=context.library.version_text, address=pipe.address, key=key)
        try:
            granted = decode(call(encode(ask), timeout_s), Granted, peer)
        except Refused as exc:
            if exc.code is RefusalCode.NO_UCX:
                raise TransportUnavailable(f"{peer} {exc}") from exc
            raise
        with pipe.lock:
            pipe.connect(granted.address)
            pipe.send(Kind.HELLO, 0, 0)
        if not pipe.wait(_clear(pipe, Kind.WELCOME), max(0.001, deadline - time.monotonic())):
            raise _unreached(context, peer, timeout_s)
        if pipe.failure is not None:
            raise Broken(pipe.failure)
    except Broken as exc:
        pipe.destroy()
        raise _unreached(context, peer, timeout_s) from exc
    except BaseException:
        pipe.destroy()
        raise
    return UcxStream(pipe, peer, timeouts, forget)


def _unreached(context: UcxContext, peer: str, timeout_s: float) -> DeadlineExceeded:
    ports = context.settings.get("TCP_PORT_RANGE", "")
    where = f"the ports {ports} (UCX_TCP_PORT_RANGE)" if ports else "the ports that UCX takes (UCX_TCP_PORT_RANGE)"
    devices = context.settings.get("NET_DEVICES", "")
    over = f" over {devices} (UCX_NET_DEVICES)" if devices else ""
    return DeadlineExceeded(
        f"{peer} answers, but could not be reached over UCX{over} in {timeout_s:.3g} s: does a firewall close {where}? "
        "docs/networks.md says what to open; --transport flight does without."
    )
