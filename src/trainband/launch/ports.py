"""Free ports that stay reserved until the tasks they were assigned to have bound them."""

from __future__ import annotations

import socket

from trainband.errors import AddressInUse, ClusterError


class ReservedPorts:
    """Holds `n` free TCP ports of a host for tasks that are yet to start.

    ::

        with ReservedPorts(3) as reserved:
            start_tasks(reserved.addresses)
            wait_for_tasks()

    The usual way (bind port 0, read the number, close the socket and pass the number on) is a race: until
    the task binds it, the kernel may assign the port to any other process, and a task that first starts
    Python and JAX binds it a second later. So the sockets here stay bound until the reservation is closed,
    with SO_REUSEADDR and SO_REUSEPORT and without listening. The kernel then does not assign the port to a
    process that asks for any free port, to listen or to connect, and refuses it to one that binds it
    with neither option. A server that sets one of them can bind it beside the reservation: Arrow Flight sets
    SO_REUSEADDR alone (it turns off gRPC's SO_REUSEPORT; measured with pyarrow 26), other gRPC servers set
    both. Connections go only to listening sockets, thus all to the server and none to the reservation, and
    before the server is up they are refused at once.

    The ports are distinct. Sockets that may share a port do not guarantee this by themselves: the kernel may
    assign the same port to two that ask for any port (Linux does so with `ip_autobind_reuse` when ports run
    low). Two tasks on one port would be noticed late: the second cannot serve, or, with SO_REUSEPORT, both
    listen and the kernel splits the clients between them. So a repeated number is bound a second time, and
    another one is requested.

    Args:
      host: the address to bind them on.

    Attributes:
      host: as given.
      ports: the numbers, all different.

    Raises:
      ClusterError: `n` is negative, or the host is not an address of this machine.
      AddressInUse: the machine has too few free ports.
    """

    def __init__(self, n: int, host: str = "127.0.0.1") -> None:
        if n < 0:
            raise ClusterError(f"ReservedPorts.n must be 0 or more, got {n}.")
        self.host = host
        self._sockets: list[socket.socket] = []
        try:
            self.ports = self._reserve(n)
        except BaseException:
            self.close()
            raise

    def _reserve(self, n: int) -> tuple[int, ...]:
        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, 0, type=socket.SOCK_STREAM)[0]
        except OSError as exc:
            raise ClusterError(
                f"the host {self.host!r} cannot be resolved ({exc}); give a name or address of this machine."
            ) from None
        ports: dict[int, None] = {}
        while len(ports) < n:
            try:
                reservation = socket.socket(family, socket.SOCK_STREAM)
                self._sockets.append(reservation)
                for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                    reservation.setsockopt(socket.SOL_SOCKET, option, 1)
                reservation.bind(address)
            except OSError as exc:
                if len(ports) == 0:
                    raise ClusterError(
                        f"cannot serve on the host {self.host!r} ({exc}); give an address of this machine."
                    ) from None
                raise AddressInUse(f"{self.host} gave {len(ports)} free ports of the {n} asked for ({exc}).") from None
            ports[reservation.getsockname()[1]] = None
        return tuple(ports)

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of each, IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return tuple(f"{host}:{port}" for port in self.ports)

    def close(self) -> None:
        """Releases the ports. Idempotent."""
        for reservation in self._sockets:
            reservation.close()
        self._sockets.clear()

    def __enter__(self) -> ReservedPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
