"""What the wire tests share: a listener to talk to, and a watch over what it leaves behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from serving import EchoHandler

from trainband.wire.flight import FlightTransport
from trainband.wire.memory import MemoryTransport
from trainband.wire.network import Network
from trainband.wire.transport import Connection, Listener, Timeouts, Transport

FAST = Timeouts(connect_s=5.0, call_s=5.0, stall_s=20.0, heartbeat_s=0.1, lease_s=1.0, grace_s=2.0)
"""Short enough that a test which waits for a heartbeat is quick."""

_KINDS: dict[str, Callable[[], Transport]] = {
    "memory": MemoryTransport,
    "flight": FlightTransport,
    "network": Network,
    "network without shared memory": lambda: Network(shared_memory=False),
}


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 10.0) -> None:
    """Looks again and again until something outside our reach has happened."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen in {deadline_s} s")
        threading.Event().wait(0.01)


def our_threads() -> set[threading.Thread]:
    """Threads that Python started; gRPC's own show up as dummies and stay for as long as gRPC likes."""
    return {
        thread
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)  # noqa: SLF001 - there is no public way
    }


@pytest.fixture(autouse=True)
def _no_leaked_threads() -> Iterator[None]:
    before = our_threads()
    yield
    deadline = time.monotonic() + 5.0
    while (left := our_threads() - before) and time.monotonic() < deadline:
        next(iter(left)).join(0.05)
    if left:
        pytest.fail(f"threads are left: {sorted(thread.name for thread in left)}")


def open_descriptors() -> set[str]:
    """What each open descriptor of this process is, gRPC's own polling machinery aside."""
    gc.collect()
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:
            continue
        if "eventpoll" not in target and "eventfd" not in target:
            found.add(f"{name} {target}")
    return found


@dataclass
class Wire:
    """One transport with a listener, and whoever serves there."""

    kind: str
    transport: Transport
    handler: EchoHandler
    listener: Listener
    connection: Connection

    @property
    def is_real(self) -> bool:
        return self.kind != "memory"


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
