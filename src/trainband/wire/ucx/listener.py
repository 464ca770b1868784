"""Accepting and opening streams over UCX.

Over the Flight connection, on which they have proved their identities, both ends exchange their addresses and
the key of the stream's messages. Messages without the key are ignored.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from trainband.errors import DeadlineExceeded, RefusalCode, Refused, ResourceExhausted, TransportUnavailable
from trainband.runtime.limits import start_thread
from trainband.wire.handling import serve
from trainband.wire.messages.codec import decode, encode
from trainband.wire.messages.fields import Text
from trainband.wire.ticker import Ticker
from trainband.wire.transport import Caller, Handler, Timeouts
from trainband.wire.ucx.context import UcxContext, ucx
from trainband.wire.ucx.endpoint import KINDS, Broken, Endpoint
from trainband.wire.ucx.frames import Kind
from trainband.wire.ucx.stream import UcxStream

OPEN = "trainband.ucx"
"""The control call that requests a stream."""

StreamTicker = Ticker[UcxStream]

_MOST_STREAMS = 1024
"""Limit on concurrent streams."""
_KEY_BITS = 64 - KINDS
_Address = Annotated[bytes, Meta(min_length=1, max_length=64 << 10)]


class Ask(Struct, frozen=True, kw_only=True):
    """`trainband.ucx` -> `Granted`: a client requests a stream."""

    version: Text
    """Version of its UCX."""
    address: _Address
    """Address of its worker."""
    key: Annotated[int, Meta(ge=0, lt=1 << _KEY_BITS)]
    """Random, for this one stream: identifies its messages."""


class Granted(Struct, frozen=True, kw_only=True):
    """The stream's other end."""

    address: _Address


def _usable(*, is_wanted: bool) -> UcxContext:
    try:
        context = ucx()
    except TransportUnavailable as exc:
        raise TransportUnavailable(f"cannot take streams over UCX: {exc}") from exc
    _avoid_strangers(context, is_wanted=is_wanted)
    return context


def _avoid_strangers(context: UcxContext, *, is_wanted: bool) -> None:
    if not is_wanted and context.has_strangers(time.monotonic()):
        raise TransportUnavailable(
            "takes no streams over UCX for some minutes: a sender outside the job has sent to its UCX port. "
            "Let only the machines of the job reach these ports (UCX_TCP_PORT_RANGE; docs/networks.md)."
        )


def same_version(mine: str, theirs: str) -> bool:
    """Whether two UCX versions are compatible: their messages may change with every minor version."""
    return mine.split(".")[:2] == theirs.split(".")[:2]


def _never() -> bool:
    return False


def _clear(endpoint: Endpoint, kind: Kind, given_up: Callable[[], bool] = _never) -> Callable[[], bool]:
    """Returns a check for the first message of a kind, which is also true if none will come."""

    def came() -> bool:
        if handle := endpoint.find(kind):
            endpoint.accept(handle, 0, 0)
            return True
        return endpoint.failure is not None or given_up()

    return came


def not_served(_body: bytes, _caller: Caller) -> bytes:
    """Answers `OPEN` if UCX is not served."""
    raise Refused(
        "takes no streams over UCX: it has no UCX, may not use it (TRAINBAND_TRUSTED_FABRIC), or was told to use "
        "another transport.",
        RefusalCode.NO_UCX,
    )


class UcxListener:
    """Accepts the UCX streams of one listener.

    Args:
      is_wanted: whether streams must use UCX, so that a machine without it raises an error immediately.

    Raises:
      TransportUnavailable: streams must use UCX, and this machine has no usable UCX.
    """

    def __init__(self, handler: Handler, timeouts: Timeouts, *, is_wanted: bool = False) -> None:
        self.address = ""
        """Address of the listener that it belongs to, for messages."""
        self.handler = handler
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._serving: dict[threading.Thread, UcxStream | Endpoint] = {}
        self._ticker: StreamTicker = Ticker("ucx", timeouts.heartbeat_s / 2)
        self._stopping = False
        self._is_wanted = is_wanted
        if is_wanted:
            ucx()

    def open(self, body: bytes, caller: Caller) -> bytes:
        """Answers `OPEN`.

        Raises:
          Refused: this task takes no streams over UCX.
        """
        ask = decode(body, Ask, caller.peer)
        try:
            context = _usable(is_wanted=self._is_wanted)
            if not same_version(context.library.version_text, ask.version):
                raise TransportUnavailable(
                    f"has UCX {context.library.version_text}, the other end UCX {ask.version}, which may be "
                    "incompatible; install the same version on both."
                )
            endpoint = Endpoint(context, ask.key)
        except TransportUnavailable as exc:
            raise Refused(str(exc), RefusalCode.NO_UCX) from exc
        try:
            granted = encode(Granted(address=endpoint.address))
            self._start(endpoint, ask.address, caller)
        except BaseException:
            endpoint.destroy()
            raise
        return granted

    def _start(self, endpoint: Endpoint, address: bytes, caller: Caller) -> None:
        thread = threading.Thread(
            target=self._serve, args=(endpoint, address, caller), name=f"trainband-ucx-{self.address}", daemon=True
        )
        with self._lock:
            if self._stopping:
                raise Refused(f"{self.address} is stopping.")
            if len(self._serving) >= _MOST_STREAMS:
                raise Refused(f"{self.address} already serves {_MOST_STREAMS:,} streams over UCX.", RefusalCode.BUSY)
            try:
                start_thread(thread)
            except ResourceExhausted as exc:
                logging.getLogger("trainband.wire").error("%s cannot serve more streams: %s", self.address, exc)
                raise Refused(str(exc)) from exc
            self._serving[thread] = endpoint

    def _serve(self, endpoint: Endpoint, address: bytes, caller: Caller) -> None:
        me = threading.current_thread()
        try:
            stream = self._accept(endpoint, address, caller)
            if stream is None:
                return
            with self._lock:
                self._serving[me] = stream
                if self._stopping:
                    stream.stop_receiving()
            self._ticker.add(stream)
            reason = serve(self.handler, stream, self.address, caller)
            self._ticker.remove(stream)
            stream.end(reason)
        finally:
            endpoint.destroy()
            with self._lock:
                self._serving.pop(me, None)

    def _accept(self, endpoint: Endpoint, address: bytes, caller: Caller) -> UcxStream | None:
        """Returns the stream once the client has connected; `None` if it does not."""
        try:
            came = endpoint.wait(_clear(endpoint, Kind.HELLO, lambda: self._stopping), self._timeouts.connect_s)
            if not came or self._stopping or endpoint.failure is not None:
                return None
            with endpoint.lock:
                endpoint.connect(address)
                endpoint.send(Kind.ACCEPTED, 0, 0)
        except (Broken, TransportUnavailable) as exc:
            logging.getLogger("trainband.wire").warning("%s: no stream over UCX: %s", self.address, exc)
            return None
        return UcxStream(endpoint, caller.peer or "a client over UCX", self._timeouts, lambda _stream: None)

    def stop(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        with self._lock:
            self._stopping = True
            serving = dict(self._serving)
        streams = [stream for stream in serving.values() if isinstance(stream, UcxStream)]
        for stream in streams:
            stream.stop_receiving()
        for endpoint in serving.values():
            if isinstance(endpoint, Endpoint):
                endpoint.wake()
        others = serving.keys() - {threading.current_thread()}
        soon = time.monotonic() + 0.8 * grace_s
        for thread in others:
            thread.join(max(0.0, soon - time.monotonic()))
        for stream in streams:
            stream.interrupt()
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._ticker.close()


def open_ucx_stream(
    call: Callable[[bytes, float], bytes],
    peer: str,
    timeouts: Timeouts,
    timeout_s: float,
    forget: Callable[[UcxStream], None],
    *,
    is_wanted: bool = False,
) -> UcxStream:
    """Opens a stream to a listener.

    Args:
      call: makes the control call `OPEN` with this body, within this many seconds.
      is_wanted: whether the stream must use UCX.

    Raises:
      TransportUnavailable: one of the two has no UCX, or they have no network in common.
      DeadlineExceeded: the listener answers, but cannot be reached over UCX.
    """
    deadline = time.monotonic() + timeout_s
    context = ucx()
    _avoid_strangers(context, is_wanted=is_wanted)
    key = secrets.randbits(_KEY_BITS)
    endpoint = Endpoint(context, key)
    try:
        ask = Ask(version=context.library.version_text, address=endpoint.address, key=key)
        try:
            granted = decode(call(encode(ask), timeout_s), Granted, peer)
        except Refused as exc:
            if exc.code is RefusalCode.NO_UCX:
                raise TransportUnavailable(f"{peer} {exc}") from exc
            raise
        with endpoint.lock:
            endpoint.connect(granted.address)
            endpoint.send(Kind.HELLO, 0, 0)
        if not endpoint.wait(_clear(endpoint, Kind.ACCEPTED), max(0.001, deadline - time.monotonic())):
            raise _unreached(context, peer, timeout_s)
        if endpoint.failure is not None:
            raise Broken(endpoint.failure)
    except Broken as exc:
        endpoint.destroy()
        raise _unreached(context, peer, timeout_s) from exc
    except BaseException:
        endpoint.destroy()
        raise
    return UcxStream(endpoint, peer, timeouts, forget)


def _unreached(context: UcxContext, peer: str, timeout_s: float) -> DeadlineExceeded:
    ports = context.settings.get("TCP_PORT_RANGE", "")
    where = f"the ports {ports} (UCX_TCP_PORT_RANGE)" if ports else "the ports that UCX uses (UCX_TCP_PORT_RANGE)"
    devices = context.settings.get("NET_DEVICES", "")
    over = f" over {devices} (UCX_NET_DEVICES)" if devices else ""
    return DeadlineExceeded(
        f"{peer} answers, but could not be reached over UCX{over} in {timeout_s:.3g} s; check that no firewall blocks "
        f"{where} (see docs/networks.md), or use --transport flight."
    )
