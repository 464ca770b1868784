"""When a worker connects to a ps anew because heartbeats are not answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trainband.errors import DeadlineExceeded, PeerError, Unreachable
from trainband.ps.worker.heartbeater import Heartbeater
from trainband.wire.transport import Timeouts


class Ps:
    """Answers nothing; counts the connections to it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.connections = 0
        membership: Any = SimpleNamespace(
            transport=self,
            timeouts=Timeouts(heartbeat_s=1.0, lease_s=9.0),
            runtime=SimpleNamespace(clock=lambda: self.now, thread=lambda *_: None),
        )
        urgency: Any = SimpleNamespace(wakes=[None])
        recordings: Any = None
        self.heartbeater = Heartbeater((0, "a ps"), membership, urgency, recordings, lambda *_: None)

    def connect(self, *_: object) -> Any:
        self.connections += 1
        return SimpleNamespace(close=lambda: None)

    def fail(self, exc: PeerError) -> int:
        self.now += 1.0
        self.heartbeater._unheard(exc)  # noqa: SLF001
        return self.connections


def test_a_late_answer_leaves_the_connection_for_a_third_of_a_lease() -> None:
    ps = Ps()
    assert [ps.fail(DeadlineExceeded("late")) for _ in range(7)] == [1, 1, 2, 2, 2, 3, 3]


def test_a_connection_that_failed_is_made_anew_at_once() -> None:
    ps = Ps()
    assert [ps.fail(Unreachable("gone")) for _ in range(3)] == [2, 3, 4]
