"""Reserved ports, with real sockets."""

from __future__ import annotations

import socket

import pyarrow.flight as flight
import pytest

from trainband.cluster import Address
from trainband.errors import ClusterError
from trainband.launch import ReservedPorts


def _server(port: int, *options: int) -> socket.socket:
    server = socket.socket()
    try:
        for option in options:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
    except OSError:
        server.close()
        raise
    return server


def test_nobody_else_can_bind_a_reserved_port() -> None:
    with ReservedPorts(1) as reserved, pytest.raises(OSError, match="in use"):
        _server(reserved.ports[0])


SERVERS = [
    (socket.SO_REUSEADDR,),  # Arrow Flight
    (socket.SO_REUSEPORT,),
    (socket.SO_REUSEADDR, socket.SO_REUSEPORT),  # gRPC as it is by default
]


@pytest.mark.parametrize("options", SERVERS)
def test_a_task_can_serve_on_its_port_and_gets_all_the_connections(options: tuple[int, ...]) -> None:
    with ReservedPorts(1) as reserved, _server(reserved.ports[0], *options) as server:
        server.settimeout(5)
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", reserved.ports[0]), timeout=5) as client:
                accepted, _ = server.accept()
                accepted.close()
                assert client.recv(1) == b""


def test_while_a_task_serves_as_flight_does_nobody_else_can() -> None:
    with ReservedPorts(1) as reserved, _server(reserved.ports[0], socket.SO_REUSEADDR):
        for options in ((), *SERVERS):
            with pytest.raises(OSError, match="in use"):
                _server(reserved.ports[0], *options)


def test_a_flight_server_can_serve_on_a_reserved_port() -> None:
    """Flight itself, because it chooses the socket's options, and has not always chosen as gRPC does."""
    with ReservedPorts(1) as reserved:
        server = flight.FlightServerBase(f"grpc://{reserved.addresses[0]}")
        try:
            assert server.port == reserved.ports[0]
            with flight.connect(f"grpc://{reserved.addresses[0]}") as client, pytest.raises(NotImplementedError):
                list(client.list_flights())
        finally:
            server.shutdown()


def test_before_the_task_is_up_connections_are_refused_at_once() -> None:
    with ReservedPorts(1) as reserved, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reserved.ports[0]), timeout=5)


def test_many_reservations_are_distinct() -> None:
    with ReservedPorts(100) as first, ReservedPorts(100) as second:
        assert len({*first.ports, *second.ports}) == 200


@pytest.mark.parametrize("options", [(), *SERVERS])
def test_whoever_asks_for_any_port_gets_another(options: tuple[int, ...]) -> None:
    with ReservedPorts(50) as reserved:
        others = [_server(0, *options) for _ in range(50)]
        try:
            assert not {server.getsockname()[1] for server in others} & {*reserved.ports}
        finally:
            for server in others:
                server.close()


def test_closed_ports_are_free_again() -> None:
    reserved = ReservedPorts(1)
    reserved.close()
    reserved.close()
    _server(reserved.ports[0]).close()


def test_addresses_are_as_a_cluster_spec_wants_them() -> None:
    with ReservedPorts(2) as reserved:
        assert reserved.addresses == tuple(f"127.0.0.1:{port}" for port in reserved.ports)
    if socket.has_ipv6:
        try:
            with ReservedPorts(1, "::1") as reserved:
                assert Address.parse(reserved.addresses[0], "x") == Address("::1", reserved.ports[0])
        except ClusterError as exc:
            pytest.skip(f"this machine has no IPv6 loopback: {exc}")


def test_what_cannot_be_reserved_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"ReservedPorts\.n must be 0 or more, got -1"):
        ReservedPorts(-1)
    # 192.0.2.0/24 is kept for documentation, so it is nobody's address.
    with pytest.raises(ClusterError, match=r"cannot serve on the host '192\.0\.2\.1'"):
        ReservedPorts(1, "192.0.2.1")
    with ReservedPorts(0) as reserved:
        assert reserved.ports == ()
