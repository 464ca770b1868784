"""MetricsServer: one page over HTTP, for Prometheus, from its own thread.

It answers a bounded number of requests at a time, each of bounded size and duration. If all places are taken, a new
request replaces the oldest connection that has not sent its own yet, so silent clients keep no one out.
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
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from trainband.errors import AddressInUse, YourError
from trainband.runtime.base import Clock
from trainband.runtime.exposition import CONTENT_TYPE
from trainband.runtime.hosts import is_loopback, with_port
from trainband.runtime.http.access import ANY_HOST, Access
from trainband.runtime.http.connections import HEAD_S
from trainband.runtime.overrides import override

PATH = "/metrics"
REQUESTS = 8
"""How many are answered at a time; the next is refused with 503."""
REQUEST_BYTES = 16 * 1024
DEADLINE_S = 10.0
"""Deadline for a request and its answer: Prometheus's own default timeout."""
_MAKE_ROOM_S = 0.5
"""How long to wait for the thread of a closed connection to end."""
FRESH_S = 0.25
"""How long an answer is cached for all clients, so that none can make a task collect metrics all the time."""

_logger = logging.getLogger(__name__)


class MetricsServer:
    """Server of `/metrics` until it is closed or the process ends.

    Args:
      render: the page; called in a thread of the server, one call at a time.
      host: the address to listen on.
      port: 0 for any free port.
      deadline_s: for a request and its answer.
      requests: how many are answered at a time.
      clock: monotonic seconds.

    Raises:
      AddressInUse: another process has the port.
      YourError: the address is not on this machine, or the port is not permitted.
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
                    "(--metrics-port or TRAINBAND_METRICS_PORT), or 0 for any free port."
                ) from None
            raise YourError(
                f"metrics cannot be served at {host}:{port}: {exc.strerror or exc}. Choose another address "
                "(--metrics-host or TRAINBAND_METRICS_HOST) or port."
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="trainband-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"http://{with_port(str(self._server.server_address[0]), self.port)}{PATH}"

    def close(self) -> None:
        """Stops listening. Requests in progress may finish. Idempotent."""
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
    """Answers each request in a thread, up to a limit."""

    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, host: str, port: int, answer: Callable[[], bytes], *, deadline_s: float, requests: int) -> None:
        self.answer = answer
        self.deadline_s = deadline_s
        # On other addresses, scrapers use any host name, and any site may read the metrics as well.
        self.access = Access.at(host, hosts=() if is_loopback(host) else (ANY_HOST,))
        self._silent: dict[Any, None] = {}
        self._places = threading.BoundedSemaphore(requests)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def has_spoken(self, request: Any) -> None:
        """Records that a connection's request has come; it then keeps its place."""
        self._silent.pop(request, None)

    def _make_room(self) -> bool:
        """Takes a place, if necessary that of the oldest silent connection."""
        if self._places.acquire(blocking=False):
            return True
        for oldest in list(self._silent):
            if self._silent.pop(oldest, self) is None:
                with suppress(OSError):  # it has just closed by itself
                    oldest.shutdown(socket.SHUT_RDWR)
                return self._places.acquire(timeout=_MAKE_ROOM_S)
        return False

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._make_room():
            request.setblocking(False)
            try:
                request.send(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\n\r\n")
            except OSError:
                _logger.debug("%s asked for metrics and has gone", client_address)
            self.shutdown_request(request)
            return
        self._silent[request] = None
        try:
            threading.Thread(
                target=self._serve, args=(request, client_address), name="trainband-metrics-request", daemon=True
            ).start()
        except RuntimeError:  # the process may have no more threads
            self._silent.pop(request, None)
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
            self._silent.pop(request, None)
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
        now = time.monotonic()
        reader = _BoundedReader(self.connection, now + min(HEAD_S, self.server.deadline_s))
        self._until = now + self.server.deadline_s
        self.rfile = io.BufferedReader(reader, 4096)

    def do_GET(self) -> None:
        """Answers with the page, or with its location."""
        self._respond()

    def do_HEAD(self) -> None:
        """The same without the page."""
        self._respond()

    def _respond(self) -> None:
        self.server.has_spoken(self.request)
        path = self.path.partition("?")[0]
        named = [
            (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in self.headers.items()
        ]
        denial = self.server.access.denied(named)
        if denial is not None:
            status, kind, body = denial.status, "text/plain; charset=utf-8", f"{denial.message}\n".encode()
        elif path == PATH:
            try:
                status, kind, body = 200, CONTENT_TYPE, self.server.answer()
            except Exception:
                _logger.exception("the metrics cannot be collected")
                status, kind, body = 500, "text/plain; charset=utf-8", b"the metrics cannot be collected; see the log\n"
        elif path == "/":
            status, kind, body = 200, "text/plain; charset=utf-8", f"the metrics are at {PATH}\n".encode()
        else:
            status, kind, body = 404, "text/plain; charset=utf-8", f"only {PATH} is here\n".encode()
        self.connection.settimeout(_left_s(self._until))  # for all that is sent: see socket.sendall
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
      connection: to read.
      until: the deadline, by `time.monotonic`.
    """

    def __init__(self, connection: socket.socket, until: float) -> None:
        super().__init__()
        self._connection = connection
        self._until = until
        self._left = REQUEST_BYTES

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            return 0  # the request looks cut off
        self._connection.settimeout(_left_s(self._until))
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


def _left_s(until: float) -> float:
    """Returns the seconds until a deadline.

    Raises:
      TimeoutError: it has passed.
    """
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("its deadline has passed")
    return left_s
