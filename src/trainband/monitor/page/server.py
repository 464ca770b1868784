"""PageServer: serves the page over HTTP while its context lasts."""

from __future__ import annotations

import socket
from typing import Self

from trainband.runtime.http.access import Access
from trainband.runtime.http.asgi import Application
from trainband.runtime.http.connections import HttpLimits
from trainband.runtime.http.server import HttpServer

TRIES = 50
"""Ports tried in turn if the first is taken."""
GRACE_S = 1.0
LIMITS = HttpLimits()


class PageServer:
    """Serves the page from its own thread.

    Args:
      access: for the address that is printed.
      host: the address to listen on.
      port: 0 for a free one.
      search: whether to try the next ports if this one is taken.
    """

    def __init__(self, app: Application, access: Access, *, host: str, port: int, search: bool) -> None:
        self._access = access
        self._host = host
        tries = TRIES if search and port else 1
        self._http = HttpServer(
            app, name="trainband-page", host=host, port=port, tries=tries, limits=LIMITS, grace_s=GRACE_S
        )

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._http.port

    @property
    def url(self) -> str:
        """The address to open, with its token if any."""
        is_any = self._host in ("0.0.0.0", "::")
        url = f"http://{socket.gethostname()}:{self.port}" if is_any else self._http.url
        return f"{url}/" + (f"?token={self._access.token}" if self._access.token else "")

    def __enter__(self) -> Self:
        """Opens the port and serves.

        Raises:
          AddressInUse: the port is taken, and so are the next ones if `search`.
          YourError: uvicorn is missing.
        """
        self._http.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.stop(at_once=True)  # viewers' streams never end on their own
