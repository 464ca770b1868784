"""One task's network address, `host:port`."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from trainband.errors import ClusterError
from trainband.runtime.hosts import is_loopback, with_port

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port.

    Attributes:
      host: a name or an IP address, in lower case; IPv6 without its brackets.
      port: 1 to 65535.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return with_port(self.host, self.port)

    @property
    def machine(self) -> str:
        """The host, the same for every name of the loopback interface."""
        return "localhost" if self.host in _LOOPBACK_NAMES else self.host

    @property
    def is_loopback(self) -> bool:
        """Whether the host means every machine itself: `localhost`, `::1` and 127.0.0.0/8."""
        return is_loopback(self.host)

    @classmethod
    def parse(cls, text: object, field: str) -> Address:
        """Reads `host:port`, with IPv6 in brackets: `[2001:db8::7]:2222`.

        Args:
          field: where the address was given, for the message.

        Raises:
          ClusterError: it has another form.
        """
        if not isinstance(text, str):
            raise ClusterError(f"{field}: an address is a string host:port, got {text!r}.")
        where = f"{field} = {text!r}"
        if "//" in text:
            raise ClusterError(f"{where}: write host:port without a scheme.")
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]"):
            raise ClusterError(f"{where}: the port is missing; write host:port.")
        if not host:
            raise ClusterError(f"{where}: the host is missing; write host:port.")
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
            raise ClusterError(f"{where}: the port must be a number from 1 to 65535, got {port!r}.")
        return cls(_read_host(host, where), int(port))


def resolves_to_loopback(address: str) -> bool:
    """Whether the addresses of the host make a server at `host:port` reachable from this machine only."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    return all(is_loopback(str(where[0]).partition("%")[0]) for *_, where in found)


def _read_host(host: str, where: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])).lower()
        except ValueError as exc:
            raise ClusterError(f"{where}: {host} is not an IPv6 address ({exc}).") from None
    if ":" in host:
        raise ClusterError(f"{where}: write an IPv6 address in brackets, such as [2001:db8::7]:2222.")
    if any(character.isspace() or character in "[]/@,?#" for character in host) or not host.isprintable():
        raise ClusterError(f"{where}: {host!r} is not a host name.")
    return host.lower()
