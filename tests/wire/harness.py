"""What the wire tests share that is no fixture."""

from __future__ import annotations

from dataclasses import dataclass

from tests.wire.serving import EchoHandler

from trainband.wire.transport import Connection, Listener, Timeouts, Transport

FAST = Timeouts(connect_s=20.0, call_s=20.0, stall_s=20.0, heartbeat_s=0.1, grace_s=2.0)
"""Frequent heartbeats; the deadlines are those of a hang, not of a slow machine."""


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
