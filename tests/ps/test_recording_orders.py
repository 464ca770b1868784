"""What a ps does with orders to record steps."""

from __future__ import annotations

import pytest
from tests.ps.jobs import sgd_plan
from tests.ps.test_service import Ps, life

from trainband.errors import Refused
from trainband.runtime.step_recording import LONGEST_S, StepRecording
from trainband.wire.messages import calls as m
from trainband.wire.messages.recording import Recorded, RecordingOrder, Recordings, RecordSteps


def order(ps: Ps, steps: int = 3) -> RecordingOrder:
    answer: RecordingOrder = ps.call("record_steps", RecordSteps(steps), RecordingOrder)
    return answer


def beat(ps: Ps, worker: int) -> RecordingOrder | None:
    """What a worker hears with its heartbeat."""
    state: m.JobState = ps.call("heartbeat", m.Heartbeat(worker, life(worker)), m.JobState)
    return state.recording


def send(ps: Ps, worker: int, ordered: str) -> None:
    recording = StepRecording("whoever", "here", 1, 0.0)
    ps.call("recorded", Recorded(worker, life(worker), ordered, recording), m.JobState)


def come(ps: Ps) -> set[str]:
    found: Recordings = ps.call("recordings", None, Recordings)
    return {one.task for one in found.recordings}


def test_workers_hear_of_an_order_until_all_have_sent_their_steps() -> None:
    ps = Ps(sgd_plan()).ready()
    assert ps.call("recordings", None, Recordings) == Recordings()
    first = order(ps)
    assert (first.steps, set(first.workers)) == (3, {"worker:0", "worker:1"})
    assert order(ps, 7) == first, "one at a time"
    assert beat(ps, 0) == beat(ps, 1) == first
    send(ps, 0, first.order)
    assert beat(ps, 1) == first
    assert come(ps) == {"worker:0"}, "it speaks for itself, whatever it says"
    send(ps, 1, first.order)
    assert beat(ps, 0) is None
    second = order(ps, 7)
    assert (second.steps, come(ps)) == (7, set())
    send(ps, 0, first.order)
    assert come(ps) == set(), "it comes too late"
    ps.call("leave", m.Leave(1, life(1), ""), m.JobState)
    send(ps, 0, second.order)
    assert ps.call("recordings", None, Recordings).complete, "nobody waits for one that has left"


def test_an_order_that_nobody_fulfils_is_forgotten() -> None:
    ps = Ps(sgd_plan()).ready()
    first = order(ps)
    ps.clock.now += LONGEST_S + 1
    assert beat(ps, 0) is None
    assert order(ps) != first


def test_without_workers_there_are_no_steps() -> None:
    with pytest.raises(Refused, match="no worker is training"):
        order(Ps(sgd_plan()))
