"""What the wire tests share that is no fixture."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.wire.serving import EchoHandler

from trainband.wire.transport import Connection, Listener, Timeouts, Transport

FAST = Timeouts(connect_s=5.0, call_s=5.0, stall_s=20.0, heartbeat_s=0.1, lease_s=1.0, grace_s=2.0)
"""Short enough that a test which waits for a heartbeat is quick."""


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 10.0) -> None:
    """Looks again and again until something outside our reach has happened."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen in {deadline_s} s")
        threading.Event().wait(0.01)


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

    @property
    def streams_in(self) -> str:
        """What its streams say of how they travel."""
        if self.kind.startswith("ucx"):
            return "ucx: tcp"
        is_shared = self.kind.startswith("network") and "without" not in self.kind
        return "shared memory" if is_shared else "flight" if self.is_real else "memory"
