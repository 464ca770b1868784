"""Recordings of tasks whose clocks differ, on one clock."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from trainband.monitor.clocks import shifts
from trainband.monitor.trace import trace_of
from trainband.runtime.step_recording import ClockReading, PushMoments, PushTimes, Span, StepRecording

OFFSETS = {"worker:0": 5_000.0, "worker:1": 90.0, "ps:0": 300.0, "ps:1": 77_000.0}
"""What each clock shows at the true moment 0."""


def recording_of(worker: str, chance: random.Random, steps: int = 5) -> StepRecording:
    """What a worker records that pushes to two ps, whose answers take from 0.1 to 2 ms there and back."""

    def delay() -> float:
        return chance.uniform(1e-4, 2e-3)

    def at(task: str, moment: float) -> float:
        return moment + OFFSETS[task]

    spans, pushes, readings = [], [], []
    now = 1.0
    for step in range(steps):
        begin = now
        spans.append(Span("compute", at(worker, now), at(worker, now + 0.01)))
        now += 0.01
        end = now
        for ps in ("ps:0", "ps:1"):
            came = now + delay()
            # The update is the same for all workers: it is made at a round moment.
            began = 1.05 + step * 0.1
            sent = began + 0.004
            received = sent + delay()
            moments = PushMoments(*(at(ps, one) for one in (came, came, began, began + 0.002, sent, sent)))
            pushes.append(
                PushTimes(ps, 400, 400, at(worker, now), at(worker, now + 1e-5), at(worker, received), moments)
            )
            end = max(end, received)
        spans.append(Span("wait", at(worker, now), at(worker, end)))
        spans.append(Span("step", at(worker, begin), at(worker, end), step + 1))
        now = 1.1 + step * 0.1
    for ps in ("ps:0", "ps:1"):
        asked = now
        there = asked + delay()
        readings.append(ClockReading(ps, at(worker, asked), at(ps, there), at(worker, there + delay())))
    return StepRecording(worker, "here", 1, -OFFSETS[worker], tuple(spans), tuple(pushes), tuple(readings))


@pytest.mark.parametrize("seed", range(5))
def test_clocks_are_found_within_what_is_said_of_them(seed: int) -> None:
    chance = random.Random(seed)
    found = shifts([recording_of("worker:0", chance), recording_of("worker:1", chance)])
    assert found["ps:0"].seconds == 0.0
    for task, offset in OFFSETS.items():
        wrong = abs(found[task].seconds - (OFFSETS["ps:0"] - offset))
        assert wrong <= found[task].uncertainty_s + 1e-9, task
        assert found[task].uncertainty_s < 5e-3, task


def test_no_message_arrives_before_it_was_sent_and_updates_are_shown_once() -> None:
    chance = random.Random(7)
    trace = trace_of([recording_of("worker:1", chance), recording_of("worker:0", chance)])
    events = trace["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(names.values()) == ["worker:0", "worker:1", "network", "ps:0", "ps:1"]
    bars = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in bars) == 0.0
    assert all(event["dur"] > 0 for event in bars if event["name"] in ("gradient", "params", "update", "step"))
    updates = [event for event in bars if threads[event["pid"], event["tid"]] == "updates"]
    assert sorted(names[event["pid"]] for event in updates) == ["ps:0"] * 5 + ["ps:1"] * 5
    # The updates were made 100 ms apart, whatever the clocks say.
    for ps in ("ps:0", "ps:1"):
        begun = [event["ts"] for event in updates if names[event["pid"]] == ps]
        assert [round(b - a) for a, b in pairwise(begun)] == [100_000] * 4
    steps = [event["args"]["global_step"] for event in bars if event["name"] == "step"]
    assert sorted(steps) == sorted([*range(1, 6), *range(1, 6)])


def test_jobs_without_ps_are_placed_by_the_wall_clock() -> None:
    recordings = [
        StepRecording(f"worker:{i}", "here", 1, epoch, (Span("step", 10.0, 11.0, 1),))
        for i, epoch in enumerate((1_000.0, 1_000.5))
    ]
    jax_events = {"worker:1": [{"thread": "host python", "name": "dot", "ts": 10.25e6, "dur": 100.0}]}
    events = trace_of(recordings, jax_events)["traceEvents"]
    bars = {(event["name"], event["ts"]) for event in events if event["ph"] == "X"}
    assert bars == {("step", 0.0), ("step", 500_000.0), ("dot", 750_000.0)}
    assert [e["args"]["labels"] for e in events if e["name"] == "process_labels"] == ["placed by the wall clock"]
