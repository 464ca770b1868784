"""How workers learn that all are up, over real sockets; jobs with faults are in `tests/simulation/in_step`."""

from __future__ import annotations

import socket
from threading import Thread
from typing import Any

import pytest

from trainband.cluster import Address
from trainband.errors import AddressInUse, UnknownHost
from trainband.spmd.rendezvous import listening_host, rendezvous
from trainband.spmd.sockets import Socket

TASKS = ["worker:0", "worker:1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nobody_is_listened_to_from_the_network_where_the_job_is_of_one_machine(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    chief = Address(host, port)
    met: dict[int, dict[int, Socket]] = {}
    thread = Thread(target=lambda: met.update({0: rendezvous(chief, 0, TASKS, 20.0, print)}))
    thread.start()
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            assert thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))
    met[1] = rendezvous(chief, 1, TASKS, 20.0, print)
    thread.join()
    for index in range(2):
        for connection in met[index].values():
            connection.close()


def test_where_the_chief_listens() -> None:
    assert listening_host(Address("::1", 1)) == "::1"
    assert listening_host(Address("127.3.2.1", 1)) == "127.3.2.1"
    for host in ("10.0.0.1", "fe80::1", "node-1"):
        assert listening_host(Address(host, 1)) in ("::", "0.0.0.0")


def test_a_port_that_another_program_has_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=rf"worker:0 cannot listen on its port {port}: Address already in use"):
            rendezvous(Address("127.0.0.1", port), 0, TASKS, 20.0, print)


def test_a_chief_whose_name_is_not_known_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    real, asked = socket.getaddrinfo, 0

    def getaddrinfo(_host: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1", *args, **kwargs)

    chief: dict[int, Socket] = {}
    thread = Thread(target=lambda: chief.update(rendezvous(Address("127.0.0.1", port), 0, TASKS, 20.0, print)))
    thread.start()
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    met = rendezvous(Address("job-worker-0.job", port), 1, TASKS, 20.0, print)
    thread.join()
    for connection in (*met.values(), *chief.values()):
        connection.close()
    assert asked >= 3


def test_a_chief_whose_name_stays_unknown_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_args: Any, **_kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    message = r"waited 0\.\d s for worker:0 at gone:1: the host name 'gone' cannot be resolved .*; check its spelling"
    with pytest.raises(UnknownHost, match=message):
        rendezvous(Address("gone", 1), 1, TASKS, 0.1, print)
