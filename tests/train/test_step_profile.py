"""Traces of some steps: by `fit(profile_steps=...)`, and ordered by somebody who looks at the job."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.ps.jobs import FAST, in_thread
from tests.strategies.regression import batches
from tests.train.fakes import trainer
from tests.train.test_session import Pair

from trainband import StepProfileHook
from trainband.errors import DeadlineExceeded, YourError
from trainband.monitor.step_recordings import record
from trainband.monitor.trace import trace_of
from trainband.strategies import OneDevice
from trainband.train.hooks import Hook
from trainband.wire.messages.codec import decode, encode
from trainband.wire.messages.recording import RecordingOrder, Recordings, RecordSteps


def bars_of(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The bars of a trace, by process."""
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[names[event["pid"]]].append(event)
    return found


def steps_in(bars: list[dict[str, Any]]) -> list[int]:
    return [event["args"]["global_step"] for event in bars if event["name"] == "step"]


class FirstStepsInPairs(Hook):
    """Starts this worker's first six steps together with the other's: alone, one of them may make all that count."""

    def __init__(self, together: threading.Barrier) -> None:
        self.together, self.to_come = together, 6

    def before_run(self, session: Any) -> None:
        del session
        if self.to_come:
            self.to_come -= 1
            self.together.wait(60.0)


def test_workers_and_ps_are_traced_on_one_clock(tmp_path: Path) -> None:
    pair = Pair(ps=2)
    together = threading.Barrier(2)

    def train(index: int) -> Any:
        with pair.trainer(index) as made:
            return made.fit(
                list(batches(4)),
                20,
                checkpoint_dir=tmp_path,
                profile_steps=(4, 9),
                hooks=[FirstStepsInPairs(together)],
            )

    workers = [in_thread(lambda i=i: train(i), f"worker{i}") for i in (0, 1)]  # type: ignore[misc]
    assert {one.result(60.0).global_step for one in workers} == {20}
    pair.shut_down()
    assert all(one.result(60.0) for one in pair.serving)
    trace = json.loads(gzip.decompress((tmp_path / "profiles" / "steps-4-9" / "trace.json.gz").read_bytes()))
    bars = bars_of(trace)
    assert {"worker:0", "worker:1", "network", "ps:0", "ps:1"} == set(bars)
    for worker in ("worker:0", "worker:1"):
        # The global step when a step was over: others may have made some meanwhile.
        assert steps_in(bars[worker]), worker
        assert set(steps_in(bars[worker])) <= set(range(4, 12)), worker
        assert {"compute", "encode and send", "wait for ps"} <= {event["name"] for event in bars[worker]}
    # Each push is drawn at its ps while its worker waits for the answer: the clocks are one.
    for ps in ("ps:0", "ps:1"):
        assert {"check the gradient", "update"} <= {event["name"] for event in bars[ps]}
    begin = min(e["ts"] for worker in ("worker:0", "worker:1") for e in bars[worker] if e["name"] == "step")
    end = max(e["ts"] + e["dur"] for worker in ("worker:0", "worker:1") for e in bars[worker])
    assert all(begin <= e["ts"] and e["ts"] + e["dur"] <= end for ps in ("ps:0", "ps:1") for e in bars[ps])
    # One process has one profiler: one of the two has it, the other says so.
    assert any("profiled" in line and "trace.json.gz" in line for line in pair.said)
    assert any(event["name"].startswith("PjitFunction") for w in ("worker:0", "worker:1") for event in bars[w])


def test_without_ps_and_until_the_training_ends(tmp_path: Path) -> None:
    said: list[str] = []
    made = trainer(strategy=OneDevice("cpu", say=lambda _: None), say=said.append)
    made.fit(list(batches(6)), 6, profile_steps=(4, 100), profile_dir=tmp_path)
    trace = json.loads(gzip.decompress((tmp_path / "steps-4-100" / "trace.json.gz").read_bytes()))
    bars = bars_of(trace)
    assert steps_in(bars["local"]) == [4, 5, 6]
    assert any(event["name"].startswith("PjitFunction") for event in bars["local"])
    assert list(tmp_path.glob("steps-4-100/jax/local/plugins/profile/*/*.xplane.pb"))


@pytest.mark.parametrize("steps", [(0, 5), (6, 5), (1, 1_001)])
def test_what_cannot_be_profiled(steps: tuple[int, int]) -> None:
    with pytest.raises(YourError, match="steps to profile must be"):
        StepProfileHook(*steps)


def test_a_profile_needs_a_directory() -> None:
    made = trainer(strategy=OneDevice("cpu", say=lambda _: None), say=lambda _: None)
    with pytest.raises(YourError, match="pass profile_dir="):
        made.fit(list(batches(2)), 2, profile_steps=(1, 2))


class Asker:
    """Asks a ps over the transport of a pair."""

    def __init__(self, pair: Pair, ps: int = 0) -> None:
        self.connection = pair.transport.connect(f"ps{ps}:1", FAST)

    def record_steps(self, steps: int) -> RecordingOrder:
        return decode(
            self.connection.call("record_steps", encode(RecordSteps(steps)), timeout_s=5.0), RecordingOrder, "ps"
        )

    def recordings(self) -> Recordings:
        return decode(self.connection.call("recordings", timeout_s=5.0), Recordings, "ps")

    def close(self) -> None:
        self.connection.close()


def test_steps_are_recorded_for_who_looks_at_the_job() -> None:
    pair = Pair(ps=2)
    begun, enough = threading.Barrier(3), threading.Event()

    class Begins(Hook):
        waited = False

        def after_run(self, session: Any, report: Any) -> None:
            del report
            if not self.waited:
                self.waited = True
                begun.wait(30.0)
            if enough.is_set() and session.is_chief:
                session.request_stop("enough was recorded")

    def train(index: int) -> Any:
        with pair.trainer(index) as made:
            return made.fit(list(batches(4)), 10**9, hooks=[Begins()])

    workers = [in_thread(lambda i=i: train(i), f"worker{i}") for i in (0, 1)]  # type: ignore[misc]
    begun.wait(30.0)
    asker = Asker(pair, 1)
    counts: list[tuple[int, int]] = []
    recordings = record(asker, 3, heard=lambda came, of: counts.append((came, of)))
    again = record(asker, 1)
    enough.set()
    for one in workers:
        one.result(60.0)
    asker.close()
    pair.shut_down()
    assert all(one.result(60.0) for one in pair.serving)
    assert counts[-1] == (2, 2)
    bars = bars_of(trace_of(recordings))
    for worker in ("worker:0", "worker:1"):
        steps = steps_in(bars[worker])
        assert len(steps) == 3, worker
        assert steps == sorted(set(steps)), worker
    assert {"ps:0", "ps:1", "network"} < set(bars)
    assert [sum(span.name == "step" for span in one.spans) for one in again] == [1, 1]


def test_nobody_waits_for_ever_for_steps() -> None:
    class Silent:
        now = 0.0

        def record_steps(self, steps: int) -> RecordingOrder:
            return RecordingOrder("one", steps, ("worker:0",))

        def recordings(self) -> Recordings:
            self.now += 10.0
            return Recordings(RecordingOrder("one", 3, ("worker:0",)), complete=False)

        def close(self) -> None:
            raise AssertionError("whoever has made it closes it")

    silent = Silent()
    with pytest.raises(DeadlineExceeded, match="none of worker:0 has sent its steps"):
        record(silent, 3, most_s=15.0, clock=lambda: silent.now)
