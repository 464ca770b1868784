"""Addresses of listeners, and a clear word about one that cannot be had."""

from __future__ import annotations

import errno
import ipaddress
import socket

from ..errors import AddressInUse, ClusterError, UnknownHost


def split(address: str) -> tuple[str, int]:
    """Host and port of `host:port`; IPv6 hosts stand in brackets, port 0 is allowed.

    Raises:
      ClusterError: it is no such text.
    """
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ClusterError(f"{address!r} is no address; write host:port.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join(host: str, port: int) -> str:
    """`host:port`, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(peer: str) -> str:
    """The host of `host:port`, or the whole text where it is no such thing."""
    host, colon, _ = peer.rpartition(":")
    return host.removeprefix("[").removesuffix("]") if colon else peer


def is_loopback(address: str) -> bool:
    """Whether a server at `host:port` can be reached from this machine only."""
    host, port = split(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(where[0]).partition("%")[0]).is_loopback for *_, where in found)


def taken(address: str) -> AddressInUse:
    """The error for an address that somebody else serves."""
    port = split(address)[1]
    return AddressInUse(
        f"{address} is taken by another process; end that process (`ss -ltnp 'sport = :{port}'` names it) "
        "or give this task another port."
    )


def unknown_host(address: str) -> UnknownHost:
    """The error for an address whose host name has no address of the network."""
    return UnknownHost(
        f"the host name {split(address)[0]!r} of {address} cannot be resolved; check its spelling, and that this "
        "machine can look it up."
    )


def check(address: str) -> None:
    """Makes sure that a server can be bound to `host:port`.

    gRPC would find out too, but it says so on stderr, in words for those who write gRPC, and cannot tell the
    reasons apart. This binds a socket as Arrow Flight has gRPC do it, with SO_REUSEADDR and, unlike other gRPC
    servers, without SO_REUSEPORT: two servers never share a port. A launcher that keeps a port for its tasks
    does not stand in the way if its socket has SO_REUSEADDR too and does not listen.

    Raises:
      AddressInUse: another process has the port.
      ClusterError: the host is not an address of this machine.
    """
    host, port = split(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        raise ClusterError(
            f"cannot serve at {address}: {host!r} has no address here ({exc.strerror or exc}); "
            "check the task's address in the cluster."
        ) from None
    family, _, _, _, where = found[0]
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(where)
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                raise taken(address) from None
            if exc.errno == errno.EADDRNOTAVAIL:
                raise ClusterError(
                    f"cannot serve at {address}: {host} is not an address of this machine; "
                    "check which task this process is, and the task's address in the cluster."
                ) from None
            if exc.errno == errno.EACCES:
                raise ClusterError(
                    f"cannot serve at {address}: this user may not use port {port}; choose one of 1024 or more."
                ) from None
            raise
