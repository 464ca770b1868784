"""The standby's end of a primary's stream: what was sent on one that keeps it is the standby's, too."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from trainband.errors import StreamClosed
from trainband.ps.replication.failover import Role
from trainband.ps.replication.replicator.primary_watch import PrimaryWatch
from trainband.ps.replication.replicator.record_receiver import RecordReceiver
from trainband.wire.messages.replication import ReplicationHello


class Kept:
    """A stream that keeps what is sent, as in shared memory; `meanwhile` happens before its end."""

    peer = "ps:1"
    outlives_sender = True

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._rest = iter([meanwhile])
        self.refuses = False

    def refuse_more(self) -> None:
        self.refuses = True

    def receive(self, timeout_s: float) -> None:
        del timeout_s
        for meanwhile in self._rest:
            meanwhile()
            return
        raise StreamClosed("ps:1 closed the stream.")


def test_a_standby_takes_over_only_when_all_is_read_that_was_sent() -> None:
    lock = threading.RLock()
    other = SimpleNamespace(
        primary=("", 0), record_contact=lambda: None, timeouts=SimpleNamespace(heartbeat_s=0.1, lease_s=0.1)
    )
    state = SimpleNamespace(
        lock=lock,
        changed=threading.Condition(lock),
        wake=threading.Event(),
        stopped=False,
        replica=None,
        failover=None,
    )
    receiver = RecordReceiver(state, other, None)  # type: ignore[arg-type]
    taken_over: list[bool] = []

    def primary_is_silent() -> None:
        with lock:
            receiver.when_all_applied(lambda: taken_over.append(True))
        assert not taken_over
        assert stream.refuses

    stream: Any = Kept(primary_is_silent)
    with pytest.raises(StreamClosed):
        receiver.follow(stream, ReplicationHello(0, 1, "life of ps:1"), lambda: False)
    assert taken_over


@pytest.mark.parametrize(("moved_s", "asked"), [(1.0, False), (math.inf, True)])
def test_a_primary_whose_frame_is_under_way_is_not_replaced(moved_s: float, asked: bool) -> None:
    class Asked(Exception):
        pass

    def ask() -> None:
        raise Asked

    state = SimpleNamespace(
        replica=SimpleNamespace(is_deserted=False),
        failover=SimpleNamespace(role=Role.STANDBY),
        start_wait=lambda: None,
        end_wait=lambda: None,
    )
    other = SimpleNamespace(silent_s=160.0, timeouts=SimpleNamespace(lease_s=10.0))
    receiver, votes = SimpleNamespace(is_led=True, moved_s=moved_s), SimpleNamespace(ask=ask)
    watch = PrimaryWatch(state, other, None, receiver, votes)  # type: ignore[arg-type]
    with pytest.raises(Asked) if asked else nullcontext():
        watch.poll()
