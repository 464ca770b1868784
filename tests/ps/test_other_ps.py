"""OtherPs: what a ps that has lost its workers makes of the answers of another."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.ps.jobs import FAST, FakeClock, spec_of

from trainband.cluster import Cluster, Task
from trainband.errors import DeadlineExceeded, NobodyListens
from trainband.ps.replication.failover import Role
from trainband.ps.service.service import ParameterService
from trainband.runtime import SystemRuntime
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import encode
from trainband.wire.messages.replication import ReplicaState, Term


class Answering:
    """A transport to another ps that always says the same, and its connection."""

    def __init__(self, answer: m.JobState | Exception) -> None:
        self.answer = answer

    def connect(self, *_: Any) -> Answering:
        return self

    def call(self, action: str, *, timeout_s: float) -> bytes:
        assert (action, timeout_s) == ("state", FAST.heartbeat_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        return encode(self.answer)

    def close(self) -> None:
        pass


def ps_1(transport: Answering, clock: FakeClock) -> ParameterService:
    """The second of two ps, which has no update of its shard."""
    cluster = Cluster(spec=spec_of(2, 2), task=Task("ps", 1))
    other: Any = transport
    return ParameterService(cluster, timeouts=FAST, transport=other, runtime=SystemRuntime(clock))


HELD = ReplicaState(1, 0, Role.PRIMARY.value, "", Term(), 0, 9, "")
OVER = m.JobState(9, 9, 1, True, live=(), replicas=(HELD,), complete=True)


@pytest.mark.parametrize(
    ("state", "completed"),
    [
        (OVER, True),
        (replace(OVER, live=("worker:0",)), False),
        (replace(OVER, complete=False), False),
        (replace(OVER, replicas=(replace(HELD, shard=0),)), False),
    ],
    ids=["over", "somebody is there", "updates are missing", "another shard"],
)
def test_a_job_is_complete_where_another_holds_what_is_missing_here(state: m.JobState, completed: bool) -> None:
    other = ps_1(Answering(state), FakeClock()).lifecycle._other_ps  # noqa: SLF001
    other.ask_one()
    assert other.have_completed() is completed
    assert not other.are_gone(0.0)
    other.forget()
    assert not other.have_completed()


def test_one_that_is_silent_is_not_gone() -> None:
    clock, transport = FakeClock(), Answering(NobodyListens("gone"))
    other = ps_1(transport, clock).lifecycle._other_ps  # noqa: SLF001
    for _ in range(2):
        other.ask_one()
        clock.now += 1.0
    assert other.are_gone(2.0)
    assert not other.are_gone(2.5)
    transport.answer = DeadlineExceeded("silent")
    other.ask_one()
    assert other.are_silent
    assert not other.are_gone(0.0)
