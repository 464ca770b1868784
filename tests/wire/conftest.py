"""A listener of each kind to talk to, and a watch over what it leaves behind."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.wire.harness import FAST, Wire
from tests.wire.serving import EchoHandler

from trainband.cluster.certificates import issue, make_authority
from trainband.cluster.credentials import Credentials
from trainband.cluster.identity import Identity
from trainband.cluster.transport_choice import TRUSTED_FABRIC
from trainband.wire.flight import FlightTransport
from trainband.wire.memory.transport import MemoryTransport
from trainband.wire.network import Network
from trainband.wire.transport import Transport


@cache
def _certificates() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="trainband-tests-certificates-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    make_authority(directory)
    issue(directory, "ps:0")
    return directory


os.environ.setdefault("UCX_TLS", "tcp")  # whatever network cards this machine has

_KINDS: dict[str, Callable[[], Transport]] = {
    "memory": MemoryTransport,
    "flight": FlightTransport,
    "network": Network,
    "network without shared memory": lambda: Network("flight"),
    "ucx": lambda: Network("ucx"),
    "ucx with a secret": lambda: Network("ucx", credentials=Credentials(secret=b"s" * 32), trusted_fabric=True),
    "network with a secret": lambda: Network(credentials=Credentials(secret=b"s" * 32)),
    "flight with a secret": lambda: FlightTransport(Credentials(secret=b"s" * 32)),
    "flight with certificates": lambda: FlightTransport(Credentials(tls=_certificates()), Identity("ps:0")),
}


@pytest.fixture(autouse=True)
def _trusted_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets streams take UCX: tasks at loopback addresses have a secret, the user's own."""
    monkeypatch.setenv(TRUSTED_FABRIC, "1")


@pytest.fixture(params=list(_KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Each transport in turn."""
    name: str = request.param
    if name.startswith("network") and "without" not in name and sys.platform != "linux":
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
