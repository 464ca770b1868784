"""The hooks that come with trainband."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.train.fakes import (
    ONES,
    FakeEngine,
    FakeStrategy,
    Ticking,
    curves_in,
    events_in,
    mean_model,
    reports,
    trainer,
)

from trainband.errors import TrainingError, YourError
from trainband.strategies import StepReport
from trainband.train import (
    CheckpointSaverHook,
    FinalOpsHook,
    Hook,
    LoggingHook,
    MonitoredSession,
    NanHook,
    ProfilerHook,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from trainband.train.hooks.timer import Timer
from trainband.train.tensorboard_file import EventFile


class Unread:
    """An array that nobody may read."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("read, which waits for the device")


def played(
    hook: Hook, steps: list[StepReport], *, is_chief: bool = True, directory: Path | None = None, rate: float = 0.0
) -> list[str]:
    """Runs a hook beside these steps; returns what was said."""
    said: list[str] = []
    engine = FakeEngine(list(steps))
    engine.is_chief = is_chief
    engine.examples_rate = rate
    if directory is not None:
        engine.save = lambda *_: pytest.fail("saved")  # type: ignore[method-assign]
    made = trainer(strategy=FakeStrategy(engine), say=said.append)
    with MonitoredSession(made, hooks=[hook]) as session:
        for _ in steps:
            session.run(ONES)
    made.close()
    return said


WRONG: list[tuple[Callable[[], Any], str]] = [
    # what is asked for -> what is said
    (lambda: LoggingHook(every_steps=5, every_secs=1.0), "LoggingHook: give an interval in steps or in seconds"),
    (lambda: LoggingHook(every_steps=0), "LoggingHook: the number of steps must be at least 1, got 0"),
    (lambda: LoggingHook(every_secs=0.0), "LoggingHook: the number of seconds must be > 0, got 0.0"),
    (lambda: LoggingHook(every_secs=math.nan), "must be > 0, got nan"),
    (lambda: StepCounterHook(every_steps=5, every_secs=1.0), "StepCounterHook: give an interval"),
    (lambda: SummarySaverHook(save_steps=5, save_secs=1.0), "SummarySaverHook: give an interval"),
    (lambda: CheckpointSaverHook(), "CheckpointSaverHook: give an interval"),
    (lambda: CheckpointSaverHook(save_steps=5, save_secs=1.0), "CheckpointSaverHook: give an interval"),
    (lambda: ProfilerHook(output_dir="x"), "ProfilerHook: give an interval"),
    (lambda: ProfilerHook(output_dir="x", save_steps=5, steps=0), "ProfilerHook: steps must be at least 1, got 0"),
    (lambda: StopAtStepHook(), "StopAtStepHook: give exactly one of num_steps and last_step"),
    (lambda: StopAtStepHook(1, 2), "StopAtStepHook: give exactly one of num_steps and last_step"),
    (lambda: StopAtStepHook(num_steps=-1), "StopAtStepHook: num_steps must be 0 or more, got -1"),
    (lambda: StopAtStepHook(last_step=-2), "StopAtStepHook: last_step must be 0 or more, got -2"),
]


@pytest.mark.parametrize(("make", "words"), WRONG, ids=range(len(WRONG)))
def test_arguments_are_checked(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


LIMITS: list[tuple[StopAtStepHook, int, int]] = [
    # hook, where the training began -> where it ends
    (StopAtStepHook(num_steps=10), 0, 10),
    (StopAtStepHook(num_steps=10), 7, 17),
    (StopAtStepHook(num_steps=0), 7, 7),
    (StopAtStepHook(last_step=10), 7, 10),
    (StopAtStepHook(last_step=0), 7, 0),
]


@pytest.mark.parametrize(("hook", "began_at", "last"), LIMITS, ids=range(len(LIMITS)))
def test_stop_at_step(hook: StopAtStepHook, began_at: int, last: int) -> None:
    assert hook.last_step_from(began_at) == last


# --- Timer


STEPS_DUE: list[tuple[list[int], list[int]]] = [
    # global steps that are seen -> those at which it is due, every 10
    ([1, 2, 9, 10, 11, 20], [1, 10, 20]),
    ([1, 11, 19, 35, 39, 40], [1, 11, 35, 40]),  # other workers make steps too: a multiple may never be seen
    ([10, 15, 20], [10, 20]),
]


@pytest.mark.parametrize(("seen", "due"), STEPS_DUE, ids=range(len(STEPS_DUE)))
def test_a_timer_by_steps(seen: list[int], due: list[int]) -> None:
    timer = Timer("x", every_steps=10, every_secs=None)
    found = []
    for step in seen:
        if timer.due(step, 0.0):
            timer.record(step, 0.0)
            found.append(step)
    assert found == due


def test_a_timer_by_seconds() -> None:
    timer = Timer("x", every_steps=None, every_secs=2.0)
    assert timer.due(5, 100.0)
    timer.record(5, 100.0)
    assert timer.last_step == 5
    assert not timer.due(500, 101.9)
    assert timer.due(6, 102.0)


# --- LoggingHook


def test_lines_come_so_often() -> None:
    steps = [
        *reports(0.5, metrics={"worst": np.float32(2)}),
        *reports(*[Unread()] * 8, first=2, metrics={"worst": Unread()}),
        *reports(jnp.float32(0.25), first=10, metrics={"worst": jnp.ones(())}),
    ]
    assert played(LoggingHook(every_steps=10), steps) == [
        "global step 1, loss 0.5000, worst 2.0000",
        "global step 10, loss 0.2500, worst 1.0000",
    ]


def test_a_hundred_steps_where_nobody_says_how_often() -> None:
    said = played(LoggingHook(), reports(*[1.0] * 201))
    assert said == [f"global step {step}, loss 1.0000" for step in (1, 100, 200)]


def test_lines_by_seconds() -> None:
    said = played(LoggingHook(every_secs=2.5, clock=Ticking(1.0)), reports(*[1.0] * 7))
    assert said == [f"global step {step}, loss 1.0000" for step in (1, 4, 7)]


def test_a_worker_that_is_not_the_chief_says_who_it_is() -> None:
    assert played(LoggingHook(), reports(1.0, first=1200), is_chief=False) == [
        "worker:9: global step 1,200, loss 1.0000"
    ]


def test_a_line_of_ones_own() -> None:
    hook = LoggingHook(formatter=lambda values: " ".join(f"{name}={value:g}" for name, value in values.items()))
    assert played(hook, reports(0.5, metrics={"worst": 2.0})) == ["global_step=1 loss=0.5 worst=2"]


# --- StepCounterHook


def test_steps_per_second_without_the_first(tmp_path: Path) -> None:
    hook = StepCounterHook(every_steps=4, output_dir=tmp_path, clock=Ticking(0.5))
    said = played(hook, reports(*[Unread()] * 9), rate=32.0)
    # From step 1 to step 4, and to step 8, at a step each half second.
    assert said == [
        "global step 4: 2.0 global_step/sec, 32.0 examples/sec",
        "global step 8: 2.0 global_step/sec, 32.0 examples/sec",
    ]
    assert curves_in(tmp_path) == {"global_step/sec": [(4, 2.0), (8, 2.0)], "examples/sec": [(4, 32.0), (8, 32.0)]}


def test_steps_per_second_are_the_chiefs_to_tell(tmp_path: Path) -> None:
    hook = StepCounterHook(every_steps=2, output_dir=tmp_path)
    assert played(hook, reports(*[1.0] * 9), is_chief=False) == []
    assert list(tmp_path.iterdir()) == []


def test_steps_per_second_without_a_directory() -> None:
    said = played(StepCounterHook(every_secs=2.0, clock=Ticking(1.0)), reports(*[1.0] * 4))
    assert said == ["global step 3: 1.0 global_step/sec"]


# --- SummarySaverHook


def test_curves_and_histograms(tmp_path: Path) -> None:
    asked = []

    def summaries(session: MonitoredSession) -> dict[str, Any]:
        asked.append(session.global_step)
        return {"rate": 0.125, "kernel": np.array([[1.0, 2.0], [np.nan, 4.0]]), "nothing": np.zeros((0, 3))}

    steps = [
        *reports(0.5, metrics={"worst": jnp.float32(2)}),
        *reports(Unread(), first=2),
        *reports(0.25, first=3, metrics={"worst": 1.0}),
    ]
    assert played(SummarySaverHook(save_steps=3, output_dir=tmp_path, summaries=summaries), steps) == []
    assert asked == [1, 3]
    assert curves_in(tmp_path) == {
        "loss": [(1, 0.5), (3, 0.25)],
        "worst": [(1, 2.0), (3, 1.0)],
        "rate": [(1, 0.125), (3, 0.125)],
    }
    ((version, *events),) = events_in(tmp_path)
    assert version.file_version == "brain.Event:2"
    histograms = [value.histo for event in events for value in event.summary.value if value.HasField("histo")]
    assert [(h.num, h.min, h.max, h.sum) for h in histograms] == [(3, 1.0, 4.0, 7.0)] * 2
    assert sum(histograms[0].bucket) == 3


def test_a_loss_that_is_no_number_is_shown_as_such(tmp_path: Path) -> None:
    played(SummarySaverHook(output_dir=tmp_path), reports(math.nan))
    ((step, value),) = curves_in(tmp_path)["loss"]
    assert step == 1
    assert math.isnan(value)


def test_summaries_need_a_directory() -> None:
    with pytest.raises(YourError, match="give the hook an output_dir, or the session a checkpoint_dir"):
        played(SummarySaverHook(), reports(1.0))


def test_a_worker_that_is_not_the_chief_writes_no_summaries() -> None:
    assert played(SummarySaverHook(), reports(Unread()), is_chief=False) == []


def test_hooks_of_one_directory_share_a_file(tmp_path: Path) -> None:
    mean_model(say=lambda _: None).fit(
        [ONES] * 5,
        checkpoint_dir=tmp_path,
        hooks=[SummarySaverHook(save_steps=1), StepCounterHook(every_steps=1, clock=Ticking(1.0))],
    )
    assert len(events_in(tmp_path)) == 1
    curves = curves_in(tmp_path)
    assert [step for step, _ in curves["loss"]] == [1, 2, 3, 4, 5]
    assert [step for step, _ in curves["global_step/sec"]] == [2, 3, 4, 5]


def test_a_resumed_run_has_one_curve(tmp_path: Path) -> None:
    class Dies(Hook):
        def after_run(self, session: MonitoredSession, report: StepReport) -> None:
            if report.global_step == 4:
                session.save(wait=True)
            if report.global_step == 7:
                raise OSError("the machine is gone")

    def fit(scale: float, *hooks: Hook) -> None:
        made = mean_model(say=lambda _: None)
        made.fit([ONES * scale] * 3, 10, checkpoint_dir=tmp_path, hooks=[SummarySaverHook(save_steps=1), *hooks])

    with pytest.raises(OSError, match="the machine is gone"):
        fit(1.0, Dies())
    assert [step for step, _ in curves_in(tmp_path)["loss"]] == [1, 2, 3, 4, 5, 6, 7]
    fit(2.0)  # within the same second, too
    assert len(events_in(tmp_path)) == 2
    curve = curves_in(tmp_path)["loss"]
    assert [step for step, _ in curve] == list(range(1, 11))
    assert len(curves_in(tmp_path, purged=False)["loss"]) == 7 + 6
    np.testing.assert_allclose([value for _, value in curve[:5]], [1.0, 0.5, 0.0, -0.5, -1.0 * 2])


def test_a_full_disk_stops_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with EventFile(tmp_path, said.append, clock=Ticking(10.0)) as events:
        events.add(1, {"loss": 1.0})
        assert said == []

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("trainband.train.tensorboard_file.os.fsync", full)
        for step in range(2, 6):
            events.add(step, {"loss": 1.0})
    (line,) = said
    assert line.startswith(f"WARNING: could not write summaries to {tmp_path} (No space left on device)")


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    with EventFile(tmp_path / "file" / "below", said.append, resumed_at=3) as events:
        events.add(1, {"loss": 1.0})
        events.flush()
    (line,) = said
    assert "WARNING: could not write summaries" in line


def test_what_was_added_is_on_the_disk_after_a_while(tmp_path: Path) -> None:
    with EventFile(tmp_path, pytest.fail, clock=Ticking(3.0)) as events:
        events.add(1, {"loss": 1.0})  # 3 s after the start
        assert curves_in(tmp_path) == {}
        events.add(2, {"loss": 0.5})  # 6 s
        assert curves_in(tmp_path) == {"loss": [(1, 1.0), (2, 0.5)]}
        events.close()
        events.close()


# --- NanHook


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, np.float32(np.nan), jnp.float32(jnp.inf)], ids=repr)
def test_a_loss_that_is_not_finite_fails(loss: Any) -> None:
    with pytest.raises(TrainingError, match=r"the loss of worker:9 is -?(nan|inf) at global step 2; check the data"):
        played(NanHook(), reports(1.0, loss))


def test_a_loss_that_is_not_finite_ends_the_training() -> None:
    said: list[str] = []
    made = mean_model(say=said.append)
    batches = [ONES, ONES * np.float32(3e38), ONES * np.float32(3e38), ONES]
    with made:
        result = made.fit(batches, hooks=[NanHook(fail_on_nan=False)])
    assert (result.steps, result.stopped) == (2, "the loss of local is inf at global step 2")
    assert result.global_step == 1  # that step was refused, which is known when the next one is under way


# --- ProfilerHook


def traces_in(directory: Path) -> list[Path]:
    """The traces of JAX's profiler."""
    return sorted(directory.rglob("*.xplane.pb"))


class FakeProfiler:
    """Notes where traces begin and end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        monkeypatch.setattr("jax.profiler.start_trace", self.calls.append)
        monkeypatch.setattr("jax.profiler.stop_trace", lambda: self.calls.append("stop"))


class Steps(Hook):
    """Notes the steps among the calls of a profiler."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def after_run(self, session: MonitoredSession, report: StepReport) -> None:
        del session
        self.calls.append(report.global_step)


def test_which_steps_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeProfiler(monkeypatch)
    made = mean_model()
    hook = ProfilerHook(output_dir="x", save_steps=5, steps=2)
    made.fit([ONES] * 11, hooks=[Steps(fake.calls), hook])
    start = Path("x")
    assert fake.calls == [1, start, 2, 3, "stop", 4, 5, start, 6, 7, "stop", 8, 9, 10, start, 11, "stop"]


def test_every_worker_has_its_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeProfiler(monkeypatch)
    played(ProfilerHook(output_dir="x", save_secs=100.0, steps=1), reports(*[1.0] * 4), is_chief=False)
    assert fake.calls == [Path("x/worker-9"), "stop"]


def test_trace_files_appear(tmp_path: Path) -> None:
    mean_model().fit([ONES] * 5, hooks=[ProfilerHook(output_dir=tmp_path, save_steps=100, steps=2)])
    (trace,) = traces_in(tmp_path)
    assert trace.stat().st_size > 0


def test_an_error_ends_a_trace(tmp_path: Path) -> None:
    def broken() -> Any:
        yield ONES
        yield ONES
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        mean_model().fit(broken(), hooks=[ProfilerHook(output_dir=tmp_path / "a", save_steps=1, steps=10)])
    assert len(traces_in(tmp_path / "a")) == 1
    mean_model().fit([ONES] * 5, hooks=[ProfilerHook(output_dir=tmp_path / "b", save_steps=1, steps=10)])
    assert len(traces_in(tmp_path / "b")) == 1


# --- FinalOpsHook


def test_final_ops_see_the_values() -> None:
    hook = FinalOpsHook(lambda session: (session.global_step, float(session.params()["w"])))
    assert hook.final_ops_values is None
    mean_model().fit([ONES] * 3, hooks=[hook])
    assert hook.final_ops_values == (3, -0.5)


def test_final_ops_are_for_a_training_that_went_well() -> None:
    hook = FinalOpsHook(lambda _: pytest.fail("called"))
    with pytest.raises(TrainingError):
        mean_model(say=lambda _: None).fit([ONES * np.float32(3e38)] * 3, hooks=[hook, NanHook()])
    assert hook.final_ops_values is None
