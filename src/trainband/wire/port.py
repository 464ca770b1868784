"""Addresses of listeners, and clear errors for unusable ones."""

from __future__ import annotations

import errno
import socket

from trainband.errors import AddressInUse, ClusterError, NobodyListens, NoTaskListens, UnknownHost


def split(address: str) -> tuple[str, int]:
    """Splits `host:port` into host and port; IPv6 hosts are in brackets, port 0 is allowed.

    Raises:
      ClusterError: the text has another form.
    """
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ClusterError(f"{address!r} is not an address; write host:port.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def host_of(peer: str) -> str:
    """Returns the host of `host:port`, or the whole text if it has another form."""
    host, colon, _ = peer.rpartition(":")
    return host.removeprefix("[").removesuffix("]") if colon else peer


def address_in_use(address: str) -> AddressInUse:
    """Returns the error for an address that another process serves."""
    port = split(address)[1]
    return AddressInUse(
        f"{address} is taken by another process; end that process (`ss -ltnp 'sport = :{port}'` names it) "
        "or give this task another port."
    )


def silent(address: str, timeout_s: float) -> NoTaskListens | None:
    """Returns the error for an address where a process listens but does not answer as a task; `None` without one."""
    try:
        socket.create_connection(split(address), timeout_s).close()
    except OSError:
        return None
    return NoTaskListens(
        f"a process listens at {address} but does not answer as a task of trainband; check that the address is right "
        "and that no other program has the port."
    )


def nobody_listens(address: str) -> NobodyListens:
    """Returns the error for an address that refuses connections."""
    return NobodyListens(f"nothing listens at {address}; check that the task runs and that the address is right.")


def refuses(address: str, timeout_s: float) -> bool:
    """Whether this address refuses connections now."""
    try:
        socket.create_connection(split(address), timeout_s).close()
    except OSError as exc:
        return isinstance(exc, ConnectionRefusedError)
    return False


def unknown_host(address: str) -> UnknownHost:
    """Returns the error for an address whose host name cannot be resolved."""
    return UnknownHost(
        f"the host name {split(address)[0]!r} of {address} cannot be resolved; check its spelling and this machine's "
        "DNS."
    )


def check(address: str) -> None:
    """Checks that a server can bind to `host:port`.

    gRPC would notice too, but reports it on stderr in its own terms and cannot tell the reasons apart. This binds a
    socket with the options of Arrow Flight's gRPC: SO_REUSEADDR and, unlike other gRPC servers, no SO_REUSEPORT, so two
    servers never share a port. A launcher that reserves a port for its tasks does not interfere if its socket has
    SO_REUSEADDR too and does not listen.

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
                raise address_in_use(address) from None
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
