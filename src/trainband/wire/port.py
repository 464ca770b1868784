"""A TCP port that a gRPC server is about to bind, made sure to be ours alone.

gRPC binds with SO_REUSEPORT, so a second server on the same port starts without a word and the kernel deals
the clients out between the two. Three checks make up for it: a lock that only trainband knows, a look for
listeners of any other kind, and a trial bind, whose failure has a cleaner message than gRPC's.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import sys

from ..errors import AddressInUse, ClusterError

_PROBE_S = 1.0


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


class PortClaim:
    """The right to serve `host:port`, until closed.

    A socket that is bound with SO_REUSEPORT and does not listen, as a launcher holds to keep a port for its
    tasks, does not stand in the way.

    Raises:
      AddressInUse: another process serves there.
      ClusterError: the host is not an address of this machine.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._lock: socket.socket | None = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as exc:
            raise ClusterError(
                f"cannot serve at {join(host, port)}: {host!r} has no address here ({exc.strerror or exc}); "
                "check the task's address in the cluster."
            ) from exc
        self._family = found[0][0]
        self._ip = str(found[0][4][0])
        try:
            if port:
                self.lock(port)
                self._look_for_listener(port)
            self._try_bind(port)
        except BaseException:
            self.close()
            raise

    def lock(self, port: int) -> None:
        """Takes the lock of a port, for port 0 once the number is known.

        An abstract Unix socket: the kernel frees it when its process ends, however that ends, and it is
        known in this network namespace only, as the port is. Elsewhere than on Linux the other two checks
        must do; they leave a moment in which two tasks that start at once both pass.
        """
        if sys.platform != "linux" or self._lock is not None:
            return
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            lock.bind(f"\0trainband/{join(self._ip, port)}")
        except OSError as exc:
            lock.close()
            if exc.errno == errno.EADDRINUSE:
                raise self._taken(port) from exc
            raise
        self._lock = lock

    def _look_for_listener(self, port: int) -> None:
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        probe = socket.socket(self._family, socket.SOCK_STREAM)
        with probe:
            probe.settimeout(_PROBE_S)
            try:
                probe.connect((loopback.get(self._ip, self._ip), port))
            except OSError:
                return
            # On loopback, TCP may connect a socket to itself when the kernel picks our target as our source.
            if probe.getsockname() == probe.getpeername():
                return
            # An RST instead of a FIN: otherwise the port lingers in TIME_WAIT on our account.
            with contextlib.suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        raise self._taken(port)

    def _try_bind(self, port: int) -> None:
        with socket.socket(self._family, socket.SOCK_STREAM) as probe:
            # As gRPC does: both options, so that the trial fails exactly where gRPC would.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                probe.bind((self._ip, port))
            except OSError as exc:
                if exc.errno == errno.EADDRINUSE:
                    raise self._taken(port) from exc
                if exc.errno == errno.EADDRNOTAVAIL:
                    raise ClusterError(
                        f"cannot serve at {join(self._host, port)}: {self._host} is not an address of this machine; "
                        "check which task this process is, and the task's address in the cluster."
                    ) from exc
                if exc.errno == errno.EACCES:
                    raise ClusterError(
                        f"cannot serve at {join(self._host, port)}: this user may not use port {port}; "
                        "choose one of 1024 or more."
                    ) from exc
                raise

    def _taken(self, port: int) -> AddressInUse:
        return AddressInUse(
            f"{join(self._host, port)} is taken by another process; end that process "
            f"(`ss -ltnp 'sport = :{port}'` names it) or give this task another port."
        )

    def close(self) -> None:
        """Gives the claim back. Idempotent."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
