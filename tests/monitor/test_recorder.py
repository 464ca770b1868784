"""The recorder: what it makes of what a training gives it, over a day of a clock that is played."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband
from trainband.job.reports import Progress, StepReport, WorkerRow
from trainband.monitor.history import History
from trainband.monitor.history import events as events_module
from trainband.monitor.history import recorder as recorder_module
from trainband.monitor.history.curves import spacing
from trainband.monitor.history.recorder import Recorder
from trainband.monitor.history.rows import TrainingStart
from trainband.runtime import SYSTEM

WALL = 1_800_000_000.0


@dataclass
class Played:
    """A runtime whose clock goes on when its thread waits, and whose thread runs when the test says so."""

    until_s: float
    at_look: Callable[[float], object] = lambda _: None
    now: float = 500.0
    work: Callable[[], object] = lambda: None
    is_set: bool = False
    looks: list[float] = field(default_factory=list)

    def token(self, nbytes: int = 8) -> str:
        return SYSTEM.token(nbytes)

    def clock(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL + self.now

    def event(self) -> Any:
        runtime = self

        class Event:
            def wait(self, timeout: float) -> bool:
                runtime.now += timeout
                runtime.looks.append(timeout)
                if not runtime.is_set:
                    runtime.at_look(runtime.now)
                return runtime.is_set or runtime.now >= runtime.until_s

            def is_set(self) -> bool:
                return runtime.is_set

            def set(self) -> None:
                runtime.is_set = True

        return Event()

    def thread(self, work: Callable[[], object], name: str) -> Any:
        assert name == "trainband-history"
        runtime = self

        class Thread:
            def start(self) -> None:
                runtime.work = work

            def is_alive(self) -> bool:
                return False

            def join(self, timeout: float | None = None) -> None:
                raise AssertionError(timeout)

        return Thread()


def record(
    directory: Path,
    runtime: Played,
    source: Callable[[], Progress | None] = lambda: None,
    say: Callable[[str], None] = pytest.fail,
    **changes: Any,
) -> Recorder:
    about: dict[str, Any] = {"task": "worker:0", "job": "a", "global_step": 0, "resumed": False}
    start = TrainingStart(**{**about, **changes})
    return Recorder(directory, source, say, start, runtime=runtime, wall=runtime.wall)  # type: ignore[arg-type]


def report(step: int, loss: Any = 1.0, **more: Any) -> StepReport:
    return StepReport(loss, step, **{"applied": True, "staleness": 0, "done": False, **more})


def test_an_hour(tmp_path: Path) -> None:
    step = 0

    def train(_: float) -> None:
        nonlocal step
        for _ in range(3):
            step += 1
            recorder.rows.record_step(report(step, float(step), metrics={"accuracy": np.float32(0.5)}))

    def sample() -> Progress:
        rows = tuple(WorkerRow(f"worker:{i}", "live", 2.0, 0.5, 1.0, memory_bytes=10**9 * i) for i in range(2))
        return Progress(step, None, 0.0, None, rows, examples_rate=64.0)

    runtime = Played(500.0 + 3600.0, train)
    recorder = record(tmp_path, runtime, sample, strategy="ParameterServer")
    runtime.work()
    history = trainband.history(tmp_path)
    loss = history.series("loss")
    assert 1.0 <= spacing(3600.0) < 2.0
    assert 2900 < len(loss) <= 3600
    ages = (loss.time.astype(np.int64) / 1e6) - WALL - 500.0
    assert all(gap >= spacing(age) - 1e-3 for gap, age in zip(np.diff(ages), ages[1:], strict=True))
    # Every loss is in one mean: put together again they are the mean of all.
    counts = np.diff(np.concatenate([[0], loss.global_step]))
    assert (loss.value * counts).sum() == step * (step + 1) / 2
    rate = history.series("steps_per_second")
    assert 1.5 <= rate.value.min() <= rate.value.max() <= 3.0  # three steps a look, and seconds that it tells itself
    assert set(history.names) == {
        *("loss", "accuracy", "steps_per_second", "examples_per_second"),
        *(f"worker:{i}/{what}" for i in range(2) for what in ("steps_per_second", "staleness", "loss")),
        "worker:1/memory_bytes",  # of worker:0 it is not known
    }
    assert [event.kind for event in history.events] == ["start", "join", "join"]
    assert history.runs[0].strategy == "ParameterServer"


def test_a_run_that_was_resumed_is_as_old_as_it_was(tmp_path: Path) -> None:
    runtime = Played(700.0)
    record(tmp_path, runtime)
    runtime.work()
    week = 7 * 86_400.0
    later = Played(500.0 + week + 2000.0, now=500.0 + week)
    step = 0

    def train(_: float) -> None:
        nonlocal step
        step += 1
        again.rows.record_step(report(step))

    later.at_look = train
    again = record(tmp_path, later, job="b", resumed=True)
    later.work()
    assert set(later.looks) == {recorder_module.SELDOM_S}
    assert 6 <= len(trainband.history(tmp_path).series("loss")) <= 8  # 302 s apart
    assert len(trainband.history(tmp_path).runs) == 1


def recorded(tmp_path: Path, give: Callable[[Recorder], object], reason: str | None = "done") -> History:
    """The history of a training that gives this at once, and ends."""
    runtime = Played(0.0)
    recorder = record(tmp_path, runtime)
    give(recorder)
    recorder.close(reason)
    runtime.work()
    return trainband.history(tmp_path)


def test_a_short_training_has_all_its_figures(tmp_path: Path) -> None:
    def record(recorder: Recorder) -> None:
        recorder.rows.record_step(
            report(2, known=[(1, 3.0), (2, 1.0)], metrics={"loss": 9.0, "event/x": 7, "outputs": {"a": np.ones(1)}})
        )
        recorder.rows.record_values({"validation/loss": np.float32(0.5), "an array": np.zeros(3)}, 2)
        recorder.rows.event("checkpoint", "in 0.1 s", value=84.0, global_step=2)

    history = recorded(tmp_path, record)
    assert {name: history.series(name).value.tolist() for name in history.names} == {
        "loss": [2.0],
        "metric/event/x": [7.0],
        "validation/loss": [0.5],
    }
    told = [(event.kind, event.text, event.value, event.global_step) for event in history.events]
    assert told == [
        ("start", "", None, 0),
        ("checkpoint", "in 0.1 s", 84.0, 2),
        ("end", "done", None, 2),
    ]


def test_losses_that_are_no_numbers_and_refusals_are_told(tmp_path: Path) -> None:
    def record(recorder: Recorder) -> None:
        recorder.rows.record_step(report(1, float("inf")))
        recorder.rows.record_step(report(1, 2.0, refusal="a ps has refused it", applied=False))
        recorder.rows.record_step(report(2, 4.0, steps=0))  # of none

    history = recorded(tmp_path, record)
    assert history.series("loss").value.tolist() == [2.0]
    told = {event.kind: (event.text, event.value) for event in history.events}
    assert told["refusal"] == ("a ps has refused it", 1.0)
    assert told["non_finite_loss"][1] == 1.0


def test_steps_that_a_ps_has_lost(tmp_path: Path) -> None:
    def record(recorder: Recorder) -> None:
        for step in (1, 2, 3, 4, 2, 3):
            recorder.rows.record_step(report(step, 10.0 if step == 4 else 1.0))

    history = recorded(tmp_path, record)
    restored = next(event for event in history.events if event.kind == "restore")
    assert (restored.global_step, restored.text) == (1, "the job continues from global step 1")
    assert history.series("loss").global_step.tolist() == [3]
    assert history.left_out["value"].to_pylist() == [13 / 4]


class Computing:
    """A value that a device still computes: reading it would wait."""

    is_fully_replicated = True

    def is_ready(self) -> bool:
        return False

    def __array__(self, *args: object, **kwargs: object) -> Any:
        raise AssertionError("nobody waits for it")


def test_a_metric_that_is_still_computed_is_not_waited_for(tmp_path: Path) -> None:
    history = recorded(
        tmp_path, lambda recorder: recorder.rows.record_step(report(1, metrics={"accuracy": Computing()}))
    )
    assert history.names == ("loss",)


class Failed:
    """A value that cannot be computed, because another process is gone."""

    size = 1
    is_fully_replicated = True

    def is_ready(self) -> bool:
        return True

    def __array__(self, *args: object, **kwargs: object) -> Any:
        raise RuntimeError("Gloo all-reduce failed")


def test_a_step_that_has_failed_is_left_out(tmp_path: Path) -> None:
    def record(recorder: Recorder) -> None:
        recorder.rows.record_step(report(1, known=[(1, 3.0), (2, Failed())], metrics={"accuracy": Failed()}))

    history = recorded(tmp_path, record)
    assert {name: history.series(name).value.tolist() for name in history.names} == {"loss": [3.0]}


def test_events_are_bounded_and_the_end_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "MOST_EVENTS", 10)

    def record(recorder: Recorder) -> None:
        for i in range(50):
            recorder.rows.event("join", f"worker:{i} is back")

    events = recorded(tmp_path, record).events
    assert [event.kind for event in events] == ["start", *["join"] * 8, "limit", "end"]
    assert events[-2].text == "the events after the first 10 of this file are omitted"


def test_a_directory_that_takes_nothing_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file")
    said: list[str] = []
    runtime = Played(0.0)
    recorder = record(tmp_path, runtime, say=said.append)
    runtime.work()
    recorder.rows.record_step(report(1))
    recorder.close("done")
    (line,) = said
    assert line.startswith(f"WARNING: could not write a history to {tmp_path / 'history'} (Not a directory)")


@pytest.mark.smoke
def test_with_a_thread_of_its_own(tmp_path: Path) -> None:
    looked = threading.Event()
    recorder = Recorder(
        tmp_path,
        lambda: looked.set(),
        pytest.fail,
        TrainingStart(task="local", job="a", global_step=0, resumed=False),
    )
    recorder.rows.record_step(report(1))
    assert looked.wait(10.0)
    recorder.close("done")
    recorder.close("again")
    assert [event.text for event in trainband.history(tmp_path).events] == ["", "done"]
