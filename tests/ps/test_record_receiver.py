"""The standby's end of a primary's stream: what was sent on one that keeps it is the standby's, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trainband.errors import StreamClosed
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
