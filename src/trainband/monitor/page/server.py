"""PageServer: the page behind HTTP, while its context lasts."""

from __future__ import annotations

import errno
import socket
import threading
import time
from types import TracebackType
from typing import Any, Self

from trainband.errors import AddressInUse, DeadlineExceeded, YourError
from trainband.monitor.page.access import Access
from trainband.monitor.page.app import Application

PORT = 8470
"""Where the page is looked for first."""
TRIES = 50
"""Ports that are tried, one after the other, where the first is taken."""
START_S = 20.0
UNREAD_S = 30.0
"""After which the kernel, where it can (Linux), ends a connection whose other side takes nothing."""


class PageServer:
    """Serves the page from a thread of its own.

    Args:
      app: from `make_app`.
      access: for the address that is printed.
      host: the address to listen on.
      port: 0 for a free one.
      search: whether to take one of the next ports where this one is taken.
    """

    def __init__(self, app: Application, access: Access, *, host: str, port: int, search: bool) -> None:
        self._app = app
        self._access = access
        self._host = host
        self._wanted = port
        self._search = search
        self._socket: socket.socket | None = None
        self._http: Any = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """That it listens on."""
        return int(self._socket.getsockname()[1]) if self._socket is not None else self._wanted

    @property
    def url(self) -> str:
        """The address to open, with the token where there is one."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        if self._host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        return f"http://{host}:{self.port}/" + (f"?token={self._access.token}" if self._access.token else "")

    def __enter__(self) -> Self:
        """Opens the port and serves.

        Raises:
          AddressInUse: others have the port, and the next ones where these may be taken.
          YourError: uvicorn is missing.
        """
        try:
            import uvicorn
        except ImportError as exc:
            raise YourError("the page needs uvicorn: pip install 'trainband[serve]'.") from exc
        self._socket = listening(self._host, self._wanted, TRIES if self._search and self._wanted else 1)
        config = uvicorn.Config(
            self._app,
            log_config=None,
            log_level="critical",  # a viewer that is cut off is no error
            access_log=False,
            lifespan="off",
            interface="asgi3",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._http = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=lambda: self._http.run(sockets=[self._socket]), name="trainband-page", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._http.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self._socket.close()
                raise DeadlineExceeded(f"the page's server did not come up within {START_S:g} s; see its log above.")
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._http is not None:
            self._http.should_exit = True
            self._http.force_exit = True  # the streams of viewers never end by themselves
        if self._thread is not None:
            self._thread.join()
        if self._socket is not None:
            self._socket.close()


def listening(host: str, port: int, tries: int = 1) -> socket.socket:
    """A socket bound to the first free one of so many ports.

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
                    # Accepted sockets inherit it. uvicorn closes a connection only once all has been sent, which to a
                    # viewer that reads nothing is never.
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
                f"cannot listen on {where} ({exc.strerror or exc}); choose another --host or --port (0: a free one)."
            ) from exc
        return made
    raise AddressInUse(f"{port} is no port; choose one from 0 to 65535.")
