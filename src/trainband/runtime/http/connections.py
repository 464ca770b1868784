"""Connections: how many may be open, and how long one may keep the server waiting."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

HEAD_S = 5.0
"""Deadline for the headers of a request, from the first byte or the start of the connection, including TLS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpLimits:
    """Limits of one listening socket.

    Attributes:
      head_bytes: of one request's line, headers and trailers.
      head_s: see `HEAD_S`; also for the unread rest of a body.
      keep_alive_s: between two requests.
      connections: in all.
      connections_of_host: from one host; for IPv6, from one /64 network.
    """

    head_bytes: int = 32 << 10
    head_s: float = HEAD_S
    keep_alive_s: float = 5.0
    connections: int = 512
    connections_of_host: int = 256


class Connection(Protocol):
    """A counted connection."""

    deadline: float | None
    """When to close it; `None` while a request is being answered."""

    def abort(self) -> None:
        """Closes it at once."""


class Connections:
    """The open connections of a listening socket; used only by the thread of its event loop.

    When a connection would exceed the limit, the oldest one without a request in progress is closed instead, so idle
    clients keep no one out.

    Args:
      limits: how many, and for how long.
      clock: monotonic seconds.
    """

    def __init__(self, limits: HttpLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._hosts: dict[Connection, str] = {}
        self._of_host: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def admit(self, one: Connection, host: str) -> bool:
        """Counts a new connection, unless there are too many and all have a request in progress."""
        key = _key(host)
        of_host = self._of_host.get(key, {})
        if len(of_host) >= self.limits.connections_of_host and not self._close_oldest(of_host):
            return False
        if len(self._hosts) >= self.limits.connections and not self._close_oldest(self._hosts):
            return False
        self._hosts[one] = key
        self._of_host.setdefault(key, {})[one] = None
        one.deadline = self._clock() + self.limits.head_s
        return True

    def forget(self, one: Connection) -> None:
        """Stops counting a connection that has ended. Idempotent."""
        key = self._hosts.pop(one, None)
        if key is not None:
            of_host = self._of_host[key]
            del of_host[one]
            if not of_host:
                del self._of_host[key]

    def sweep(self) -> None:
        """Closes all that have passed their deadline; called about once a second."""
        now = self._clock()
        for one in [one for one in self._hosts if one.deadline is not None and one.deadline <= now]:
            self._close(one)

    def _close_oldest(self, among: dict[Connection, str] | dict[Connection, None]) -> bool:
        oldest = next((one for one in among if one.deadline is not None), None)
        if oldest is None:
            return False
        self._close(oldest)
        return True

    def _close(self, one: Connection) -> None:
        self.forget(one)
        one.abort()


def _key(host: str) -> str:
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], 64), strict=False))
    except ValueError:
        return host
