"""HttpServer: an ASGI application behind a listening socket, in its own thread."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from trainband.errors import AddressInUse, DeadlineExceeded, YourError
from trainband.runtime.hosts import with_port
from trainband.runtime.http.asgi import Application
from trainband.runtime.http.connections import Connections, HttpLimits

START_S = 20.0
"""How long the server may take to start listening."""
UNREAD_S = 30.0
"""After this, the kernel, if it can (Linux), ends a connection whose peer accepts no data."""
_SPARE_DESCRIPTORS = 128
"""Descriptors that the process keeps for everything except connections."""


class HttpServer:
    """HTTP server that runs from `start` to `stop`.

    Args:
      app: the ASGI application.
      name: of the thread.
      host: the address to listen on.
      port: 0 for a free one.
      tries: how many consecutive ports to try until one is free.
      limits: of connections and headers.
      grace_s: how long requests in progress may take at the end.
      tls: encrypts, if given.
    """

    def __init__(
        self,
        app: Application,
        *,
        name: str,
        host: str,
        port: int,
        tries: int = 1,
        limits: HttpLimits,
        grace_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        most = _most_connections(limits.connections)
        self.connections = Connections(
            replace(limits, connections=most, connections_of_host=min(limits.connections_of_host, most)), time.monotonic
        )
        self._app = app
        self._name = name
        self._host = host
        self._port = port
        self._tries = tries
        self._socket: socket.socket | None = None
        self._grace_s = grace_s
        self._tls = tls
        self._http: Any = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._port

    @property
    def url(self) -> str:
        """Where it listens, as `http://127.0.0.1:8000`."""
        return f"{'http' if self._tls is None else 'https'}://{with_port(self._host, self.port)}"

    def start(self) -> None:
        """Opens the port and begins to serve.

        Raises:
          AddressInUse: none of the ports is free, or the address is not one of this machine.
          YourError: a library is missing.
          DeadlineExceeded: it did not come up.
        """
        self._socket = listening(self._host, self._port, self._tries)
        self._port = int(self._socket.getsockname()[1])
        try:
            self._http = self._server()
            # In its own thread, where uvicorn leaves the process's signals alone.
            self._thread = threading.Thread(target=self._http.run, args=([self._socket],), name=self._name, daemon=True)
            self._thread.start()
            deadline = time.monotonic() + START_S
            while not self._http.started:
                if not self._thread.is_alive() or time.monotonic() > deadline:
                    raise DeadlineExceeded(f"the HTTP server did not come up within {START_S:g} s; see its log above.")
                time.sleep(0.005)
        except BaseException:
            self._socket.close()
            raise

    def _server(self) -> Any:
        try:
            import uvicorn

            from trainband.runtime.http.protocol import HttpProtocol, TlsHandshake
        except ImportError as exc:
            raise YourError(
                f"serving over HTTP needs {exc.name or 'uvicorn'}, which is not installed: "
                "pip install 'trainband[serve]'."
            ) from exc

        def protocol(**given: Any) -> Any:
            inner = HttpProtocol(self.connections, **given)
            return inner if self._tls is None else TlsHandshake(inner, self.connections, self._tls)

        async def sweep() -> None:
            self.connections.sweep()

        config = uvicorn.Config(
            self._app,
            http=protocol,  # type: ignore[arg-type] # it is called like a class
            log_config=None,
            log_level="critical",  # strangers' invalid requests are not errors here, and could fill the log
            access_log=False,
            lifespan="off",
            interface="asgi3",
            ws="none",
            # uvloop keeps reading although `TlsHandshake` has paused it, and the client's first bytes are lost.
            loop="auto" if self._tls is None else "asyncio",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=max(1, round(self.connections.limits.keep_alive_s)),
            timeout_graceful_shutdown=max(1, round(self._grace_s)),
            callback_notify=sweep,
            timeout_notify=0,
        )
        return uvicorn.Server(config)

    def stop(self, timeout_s: float | None = None, *, at_once: bool = False) -> bool:
        """Stops listening, lets requests finish unless `at_once`, and returns whether the thread has ended."""
        if self._thread is None or self._socket is None:
            return True
        self._http.force_exit = at_once
        self._http.should_exit = True
        self._thread.join(timeout_s)
        self._socket.close()
        return not self._thread.is_alive()


def listening(host: str, port: int, tries: int = 1) -> socket.socket:
    """Returns a socket bound to the first free one of `tries` ports.

    Raises:
      AddressInUse: none is free, or the address is not one of this machine.
    """
    last = port + tries - 1
    for number in range(port, min(last, 65535) + 1):
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
            made = socket.socket(family, kind)
            try:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    # Accepted sockets inherit it. uvicorn closes a connection only once everything has been sent, which
                    # never happens if the client does not read.
                    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * UNREAD_S))
                made.bind(address)
                made.listen(128)
            except OSError:
                made.close()
                raise
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE and number < last:
                continue
            where = f"{host}:{port}" if tries == 1 else f"{host}, ports {port} to {last}"
            raise AddressInUse(
                f"cannot listen on {where} ({exc.strerror or exc}); choose another --host or --port (0: any free port)."
            ) from exc
        return made
    raise AddressInUse(f"{port} is not a port; choose one from 0 to 65535.")


def _most_connections(wanted: int) -> int:
    """Returns how many of the wanted connections a process may have open: each is a file descriptor."""
    try:
        import resource
    except ImportError:  # not on Windows
        return wanted
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(16, min(wanted, soft - _SPARE_DESCRIPTORS))


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Returns the TLS context of a server.

    Args:
      certificate: a PEM file with the server's certificate chain.
      key: a PEM file with its private key.

    Raises:
      YourError: they cannot be read, or do not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def no_password() -> NoReturn:
        raise YourError(f"--tls-key {key} is encrypted; give a key without a password.")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except (OSError, ValueError) as exc:  # ssl's errors are OSErrors
        raise YourError(
            f"--tls-certificate {certificate} and --tls-key {key} cannot be used ({exc}); give a certificate and its "
            "private key, both as PEM."
        ) from exc
    return context
