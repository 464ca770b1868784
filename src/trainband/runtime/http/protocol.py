"""HttpProtocol: uvicorn's protocol for HTTP/1.1 with bounds on what a client may send, and TLS with a deadline.

uvicorn bounds neither the bytes of headers (with httptools) nor the time of a TLS handshake. It has no public hook
below the application, so this subclasses its protocol; the bound on uvicorn's version is in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from trainband.runtime.http.connections import Connections
from trainband.runtime.overrides import override

MOST_PIPELINED = 16
"""Requests that a client may send before the first of them is answered."""


class _Refused(Exception):
    """A client's input is rejected."""


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    Args:
      connections: counts this one.
      given: uvicorn's own arguments.
    """

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.deadline: float | None = None
        self._all = connections
        self._limits = connections.limits
        self._is_connected = False
        self._early = bytearray()
        """Data that came with the end of a TLS handshake, before this object had the connection."""
        self._in_head = True
        self._is_idle = False
        self._raw = 0
        """Bytes received since the head of a request was expected."""
        self._fields = 0
        """Bytes of the request's line, headers and trailers."""
        self._refusal = (400, "This is not HTTP/1.1.")

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._is_connected:
            self.transport.abort()

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._is_connected = True
        if not self._all.admit(self, (self.client or ("",))[0]):
            transport.abort()
        elif self._early:
            self.data_received(bytes(self._early))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._all.forget(self)
        if self._is_connected:
            super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        if not self._is_connected:
            self._early += data
            return
        if self.transport.is_closing():
            return
        if self._is_idle:
            self._is_idle = False
            self.deadline = time.monotonic() + self._limits.head_s
        self._raw += len(data)
        super().data_received(data)
        if self._in_head and self._raw > self._limits.head_bytes and not self.transport.is_closing():
            self._refusal = _TOO_LARGE
            self.send_400_response("")

    @override
    def send_400_response(self, msg: str) -> None:
        del msg
        if self.cycle is not None and not self.cycle.response_complete:
            if not self.cycle.more_body:  # the previous request was complete and still gets its answer
                self.cycle.keep_alive = False
                self.flow.pause_reading()
                return
            if self.cycle.response_started:  # a second one would look like part of it
                self.transport.abort()
                return
        status, message = self._refusal
        body = f"{message}\n".encode()
        head = f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()

    @override
    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            raise self._refused(400, f"More than {MOST_PIPELINED} requests were sent before the first was answered.")
        self._fields = 0
        super().on_message_begin()

    @override
    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._in_head:  # a trailer is not a header
            super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._require_own_target()
        self._in_head = False
        self.deadline = None
        super().on_headers_complete()

    @override
    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._raw = 0
        if self.cycle is None or self.cycle.response_complete:
            self._wait_for_next()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.cycle.response_complete:
            return  # the next request had already come and is answered now
        if self._in_head:
            self._wait_for_next()
        else:  # the unread rest of a body
            self.deadline = time.monotonic() + self._limits.head_s

    def _wait_for_next(self) -> None:
        self._is_idle = True
        self.deadline = time.monotonic() + self._limits.keep_alive_s

    def _count(self, nbytes: int) -> None:
        self._fields += nbytes
        if self._fields > self._limits.head_bytes:
            raise self._refused(*_TOO_LARGE)

    def _require_own_target(self) -> None:
        """Refuses a request line that names a host other than the `Host` header's, because a cache may mix them up."""
        if self.url.startswith(b"/") or self.url == b"*":
            return
        parsed = httptools.parse_url(self.url)
        target = (parsed.host or b"") + (b":%d" % parsed.port if parsed.port else b"")
        hosts = [value for name, value in self.headers if name == b"host"]
        if parsed.host is None or any(host.lower() != target.lower() for host in hosts):
            raise self._refused(400, "The request line and the Host header name different hosts.")

    def _refused(self, status: int, message: str) -> _Refused:
        self._refusal = (status, message)
        return _Refused(message)


_TOO_LARGE = (431, "The headers of the request are too large.")


class TlsHandshake(asyncio.Protocol):
    """A connection until its TLS handshake is done; an `HttpProtocol` then takes over.

    Args:
      inner: receives the decrypted data.
      connections: counts this one.
      context: of TLS.
    """

    def __init__(self, inner: HttpProtocol, connections: Connections, context: ssl.SSLContext) -> None:
        self.deadline: float | None = None
        self._inner = inner
        self._all = connections
        self._context = context
        self._transport: Any = None
        self._task: asyncio.Task[None] | None = None

    def abort(self) -> None:
        """Closes the connection at once."""
        self._transport.abort()

    @override
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if not self._all.admit(self, (transport.get_extra_info("peername") or ("",))[0]):
            transport.abort()
            return
        transport.pause_reading()  # the next data is for TLS
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    @override
    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._all.forget(self)

    async def _shake_hands(self, transport: Any) -> None:
        try:
            made = await asyncio.get_running_loop().start_tls(
                transport, self._inner, self._context, server_side=True, ssl_handshake_timeout=self._all.limits.head_s
            )
        except (OSError, RuntimeError):  # not a TLS client, or one that has gone or is too slow; ssl's are OSErrors
            transport.abort()
            return
        finally:
            self._all.forget(self)
        if made is not None:
            self._inner.connection_made(made)
