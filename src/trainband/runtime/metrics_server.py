"""MetricsServer: one page over HTTP, for Prometheus, from a thread of its own.

It is bounded: so many requests at a time, each of so many bytes and seconds. Whoever sends nothing, or never reads what
he asked for, only takes one of the places until his time is over.
"""

from __future__ import annotations

import errno
import io
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from trainband.errors import AddressInUse, YourError
from trainband.runtime.base import Clock
from trainband.runtime.exposition import CONTENT_TYPE
from trainband.runtime.overrides import override

PATH = "/metrics"
REQUESTS = 8
"""How many are answered at a time; the next is turned away with 503."""
REQUEST_BYTES = 16 * 1024
DEADLINE_S = 10.0
"""For a request and its answer: Prometheus itself waits so long."""
FRESH_S = 0.25
"""For how long an answer is good for all that ask, so that nobody can have a task collect figures all the time."""

_logger = logging.getLogger(__name__)


class MetricsServer:
    """Serves `/metrics` until it is closed, or the process ends.

    Args:
      render: the page; called in a thread of the server, one call at a time.
      host: the address to listen on.
      port: 0 for any that is free.
      deadline_s: for a request and its answer.
      requests: how many are answered at a time.
      clock: monotonic seconds.

    Raises:
      AddressInUse: another process has the port.
      YourError: there is no such address on this machine, or the port may not be used.
    """

    def __init__(
        self,
        render: Callable[[], str],
        *,
        host: str,
        port: int,
        deadline_s: float = DEADLINE_S,
        requests: int = REQUESTS,
        clock: Clock = time.monotonic,
    ) -> None:
        self._render = render
        self._clock = clock
        self._lock = threading.Lock()
        self._page = b""
        self._rendered_at = -FRESH_S - 1.0
        self._has_rendered = False
        try:
            self._server = _Server(host, port, self._answer, deadline_s=deadline_s, requests=requests)
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                raise AddressInUse(
                    f"metrics cannot be served at {host}:{port}: another process listens there. Choose another port "
                    "(--metrics-port or TRAINBAND_METRICS_PORT), or 0 for any that is free."
                ) from None
            raise YourError(
                f"metrics cannot be served at {host}:{port}: {exc.strerror or exc}. Choose another address "
                "(--metrics-host or TRAINBAND_METRICS_HOST) or port."
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="trainband-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """At which it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Of the page."""
        host = str(self._server.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}{PATH}"

    def close(self) -> None:
        """Stops listening. Requests under way have their time. Idempotent."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self) -> bytes:
        with self._lock:
            if not self._has_rendered or self._clock() - self._rendered_at > FRESH_S:
                self._page = self._render().encode()
                self._rendered_at = self._clock()
                self._has_rendered = True
            return self._page


class _Server(socketserver.TCPServer):
    """Answers each request in a thread, while there are not too many."""

    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, host: str, port: int, answer: Callable[[], bytes], *, deadline_s: float, requests: int) -> None:
        self.answer = answer
        self.deadline_s = deadline_s
        self._places = threading.BoundedSemaphore(requests)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            request.setblocking(False)
            try:
                request.send(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\n\r\n")
            except OSError:
                _logger.debug("%s asked for metrics and has gone", client_address)
            self.shutdown_request(request)
            return
        try:
            threading.Thread(
                target=self._serve, args=(request, client_address), name="trainband-metrics-request", daemon=True
            ).start()
        except RuntimeError:  # the process may have no further thread
            self._places.release()
            self.shutdown_request(request)
            raise

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except (ConnectionError, TimeoutError) as exc:
            _logger.debug("a request for metrics from %s has broken off: %s", client_address, exc)
        except Exception:
            _logger.exception("a request for metrics from %s has failed", client_address)
        finally:
            self.shutdown_request(request)
            self._places.release()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its signature
        _logger.exception("a request for metrics from %s has failed", client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request on one connection."""

    server: _Server
    server_version = "trainband"
    sys_version = ""

    @override
    def setup(self) -> None:
        super().setup()
        reader = _BoundedReader(self.connection, time.monotonic() + self.server.deadline_s)
        self.rfile = io.BufferedReader(reader, 4096)
        self._reader = reader

    def do_GET(self) -> None:
        """Answers with the page, or says where it is."""
        self._respond()

    def do_HEAD(self) -> None:
        """The same without the page."""
        self._respond()

    def _respond(self) -> None:
        path = self.path.partition("?")[0]
        if path == PATH:
            try:
                status, kind, body = 200, CONTENT_TYPE, self.server.answer()
            except Exception:
                _logger.exception("the metrics cannot be collected")
                status, kind, body = 500, "text/plain; charset=utf-8", b"the metrics cannot be collected; see the log\n"
        elif path == "/":
            status, kind, body = 200, "text/plain; charset=utf-8", f"the metrics are at {PATH}\n".encode()
        else:
            status, kind, body = 404, "text/plain; charset=utf-8", f"only {PATH} is here\n".encode()
        self.connection.settimeout(self._reader.left_s())  # for all that is sent: see socket.sendall
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - a name of http.server
        _logger.debug("metrics: %s", format % args)


class _BoundedReader(io.RawIOBase):
    """A connection's bytes, up to `REQUEST_BYTES` and until a deadline, however slowly they come.

    Args:
      connection: to be read.
      until: the deadline, by `time.monotonic`.
    """

    def __init__(self, connection: socket.socket, until: float) -> None:
        super().__init__()
        self._connection = connection
        self._until = until
        self._left = REQUEST_BYTES

    def left_s(self) -> float:
        """Seconds until the deadline.

        Raises:
          TimeoutError: it is over.
        """
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("its time is over")
        return left_s

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            return 0  # the request looks cut off
        self._connection.settimeout(self.left_s())
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count
