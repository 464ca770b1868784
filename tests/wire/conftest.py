"""A listener of each kind to talk to, and a watch over what it leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from tests.wire.harness import FAST, Wire
from tests.wire.serving import EchoHandler

from trainband.wire.flight import FlightTransport
from trainband.wire.memory import MemoryTransport
from trainband.wire.network import Network
from trainband.wire.transport import Transport

_KINDS: dict[str, Callable[[], Transport]] = {
    "memory": MemoryTransport,
    "flight": FlightTransport,
    "network": Network,
    "network without shared memory": lambda: Network(shared_memory=False),
}


@pytest.fixture(params=list(_KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Each transport in turn."""
    name: str = request.param
    if name == "network" and sys.platform != "linux":
        pytest.skip("shared memory is for Linux only")
    return name


@pytest.fixture
def transport(kind: str) -> Transport:
    """A fresh transport of each kind."""
    return _KINDS[kind]()


@pytest.fixture
def wire(kind: str, transport: Transport) -> Iterator[Wire]:
    """A listener of each kind that serves an `EchoHandler`, and a connection to it."""
    handler = EchoHandler()
    listener = transport.listen("127.0.0.1:0", handler, FAST)
    connection = transport.connect(listener.address, FAST)
    yield Wire(kind, transport, handler, listener, connection)
    connection.close()
    handler.finish.set()
    listener.stop(2.0)
