"""The seam between the connections of workers in lockstep and the network: real sockets, or simulated ones."""

from __future__ import annotations

import socket
from typing import Any, Protocol, Self

from trainband.spmd.private_socket import PrivateSocket


class Socket(Protocol):
    """A connection, as `socket.socket`."""

    def settimeout(self, value: float | None, /) -> None: ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...

    def recv(self, most: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Listener(Protocol):
    """A socket that listens, as `socket.socket`."""

    def accept(self) -> tuple[Socket, Any]: ...

    def settimeout(self, value: float | None, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Place(Protocol):
    """An address that only processes of this user can reach."""

    @property
    def address(self) -> str:
        """The address to give to gRPC."""
        ...

    def listen(self) -> Listener:
        """Returns a socket that listens there."""
        ...

    def connect(self, timeout_s: float) -> Socket:
        """Returns a connection to what listens there. Raises `OSError` if nothing does."""
        ...

    def seal(self) -> None:
        """Removes the address; connections stay. Idempotent."""
        ...


class Sockets(Protocol):
    """The network between the processes of a job."""

    def connect(self, host: str, port: int, timeout_s: float) -> Socket:
        """Returns a connection. Raises `OSError` if there is none within this time."""
        ...

    def listen(self, host: str, port: int) -> Listener:
        """Returns a socket that listens there. Raises `OSError` if another one does."""
        ...

    def private(self) -> Place:
        """Returns a new address. Raises `ClusterError` if it cannot be created."""
        ...


class SystemSockets:
    """The `Sockets` of this machine."""

    def connect(self, host: str, port: int, timeout_s: float) -> socket.socket:
        return socket.create_connection((host, port), timeout=timeout_s)

    def listen(self, host: str, port: int) -> socket.socket:
        if host == "::":
            return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)

    def private(self) -> PrivateSocket:
        return PrivateSocket()


SYSTEM_SOCKETS = SystemSockets()
