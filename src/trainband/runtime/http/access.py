"""Access: which HTTP requests are answered, decided from their headers alone."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from trainband.errors import YourError
from trainband.runtime.hosts import is_loopback
from trainband.runtime.regular_files import read_regular

ANY_HOST = "*"
_MOST_TOKEN = 256
_ONCE = (b"host", b"content-length", b"transfer-encoding", b"origin")
_DEFAULT_PORTS = ("80", "443")


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request is not answered: the HTTP status and a sentence for the client."""

    status: int
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """The rules for which requests are answered.

    Attributes:
      token: what a client must know; empty for no token.
      loopback: whether the server listens on the loopback interface.
      hosts: additional names allowed in `Host`; `*` for all.
    """

    token: str = field(default="", repr=False)
    loopback: bool = True
    hosts: frozenset[str] = frozenset()

    @classmethod
    def at(cls, address: str, *, token: str = "", hosts: Iterable[str] = ()) -> Access:
        """Returns the access to a server at an address, under the names of this machine and `hosts`."""
        loopback = is_loopback(address.strip("[]").lower())
        own = () if loopback else (address, socket.gethostname())
        return cls(token=token, loopback=loopback, hosts=frozenset(name.lower() for name in (*own, *hosts)))

    def denied(
        self, headers: Iterable[tuple[bytes, bytes]], *, cookie: str = "", public: bool = False
    ) -> Denial | None:
        """Returns why a request may not be answered; `None` if it may.

        Args:
          headers: as ASGI has them.
          cookie: the name of a cookie that may have the token.
          public: whether the request needs no token.
        """
        found: dict[bytes, str] = {}
        for raw, value in headers:
            name = raw.lower()
            if name in found and name in _ONCE:
                # Two proxies on the way may each trust a different one.
                return Denial(400, f"The request has two {name.decode('latin-1')} headers; send one.")
            found[name] = value.decode("latin-1")
        if b"content-length" in found and b"transfer-encoding" in found:
            return Denial(400, "The request has content-length and transfer-encoding headers; send one of them.")
        host = found.get(b"host")  # every browser sends one; HTTP/1.0 health checks need not
        if host is not None and not self.allows_host(host):
            return Denial(
                400,
                f"This server is not known as {host[:100]!r}. Use its IP address or localhost, or start "
                "it with this name as an allowed host.",
            )
        origin = found.get(b"origin")
        if origin is not None and _authority(origin.partition("://")[2]) != _authority(host or ""):
            return Denial(403, f"Pages of other sites, here {origin[:100]!r}, may not use this server.")
        if not public and not self.knows(found, cookie):
            if found.get(b"authorization", "").lower().startswith("bearer "):
                return Denial(401, "The token in 'Authorization: Bearer TOKEN' is not this server's.")
            return Denial(401, "This server requires a token; send it as 'Authorization: Bearer TOKEN'.")
        return None

    def knows_token(self, given: str) -> bool:
        """Whether a text is the token, compared in constant time."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    def knows(self, headers: dict[bytes, str], cookie: str) -> bool:
        """Whether the headers of a request have the token."""
        if not self.token:
            return True
        scheme, _, bearer = headers.get(b"authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.knows_token(bearer.strip()):
            return True
        pairs = (part.strip().partition("=") for part in headers.get(b"cookie", "").split(";"))
        return bool(cookie) and any(name == cookie and self.knows_token(value) for name, _, value in pairs)

    def allows_host(self, host: str) -> bool:
        """Whether a request for this `Host` is meant for this server.

        A site can point its name to this machine and then read the answers with a visitor's browser (DNS rebinding). It
        cannot do so with an IP address, nor make a browser send a token.
        """
        name = _name(host)
        if ANY_HOST in self.hosts or name in self.hosts:
            return True
        if self.loopback:
            return is_loopback(name) or is_loopback(host)
        return bool(self.token) or name == "localhost" or _is_address(name)


def new_token() -> str:
    """Returns a new random token."""
    return secrets.token_hex(16)


def read_token(path: Path, option: str) -> str:
    """Returns the token in a file.

    Args:
      path: the file.
      option: the option that named it, for the error.

    Raises:
      YourError: the file cannot be read, or has no token.
    """
    try:
        token = read_regular(path, _MOST_TOKEN + 2).decode().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise YourError(f"{option} {path} cannot be read ({getattr(exc, 'strerror', None) or exc}).") from exc
    if not (16 <= len(token) <= _MOST_TOKEN and token.isascii() and token.replace("-", "").replace("_", "").isalnum()):
        raise YourError(
            f"{option} {path} must contain 16 to {_MOST_TOKEN} letters, digits, '-' and '_'; `trainband secret` "
            "makes such a token."
        )
    return token


def _name(host: str) -> str:
    """Returns a `Host` without its port, in lower case."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() and not name.endswith(":") else host).strip("[]").lower()


def _authority(text: str) -> tuple[str, str]:
    """Returns the host and the port of an authority; the port is empty for default ports."""
    _, colon, port = text.rpartition(":")
    return _name(text), port if colon and port.isdigit() and port not in _DEFAULT_PORTS else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
