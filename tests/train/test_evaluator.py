"""The evaluator: every checkpoint once, the last of a training at the end, and nothing for ever."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.ps.jobs import FakeClock, in_thread
from tests.strategies.regression import batches
from tests.train.fakes import ONES, curves_in, lines_with, mean_model, trainer

from trainband.checkpoint import LOCK_FILE, CheckpointDirectory, Retention
from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.errors import ClusterError, DeadlineExceeded, ModelMismatch
from trainband.model.model import Model
from trainband.runtime import SystemRuntime
from trainband.strategies import StepReport
from trainband.train import Hook, MonitoredSession, Trainer
from trainband.train.evaluator import Evaluator


class Saves(Hook):
    """Saves at these steps, and lets somebody look."""

    def __init__(self, steps: dict[int, Callable[[], Any]]) -> None:
        self.steps = steps

    def after_run(self, session: MonitoredSession, report: StepReport) -> None:
        if report.global_step in self.steps:
            session.save(wait=True)
            self.steps[report.global_step]()


def nothing() -> None:
    """Goes on."""


def no_pause(_: float) -> None:
    """For one that has nothing to wait for."""
    pytest.fail("waits")


def played(pause: Callable[[float], None], clock: Callable[[], float] = time.monotonic) -> SystemRuntime:
    """One that pauses as the test wants."""
    runtime = SystemRuntime(clock)
    runtime.sleep = pause  # type: ignore[assignment]  # time.sleep takes more than floats
    return runtime


def evaluator(made: Trainer, directory: Path, runtime: SystemRuntime, **more: Any) -> Evaluator:
    """One for the trainer's model."""
    model: Model = made._model  # noqa: SLF001
    fields: dict[str, Any] = {"say": more.pop("said", []).append, "runtime": runtime, "start_s": 0.0, **more}
    return Evaluator(made.evaluate_params, model.variables(), directory, [ONES, ONES * 3], **fields)


def expected(step: int) -> float:
    """The loss of the mean model on what the evaluator has, after so many steps on ones."""
    return (1 - 0.5 * step) * 2.0


def test_beside_a_training(tmp_path: Path) -> None:
    """Each checkpoint is there until it was evaluated, so that none is missed."""
    looked = {step: threading.Event() for step in (2, 4)}
    said: list[str] = []

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            return iter([ONES, ONES * 3])

    def pause(_: float) -> None:
        for step, event in looked.items():
            if any(f"global step {step}" in line for line in said):
                event.set()
        turn.wait(0.005)

    turn = threading.Event()
    made = mean_model()
    variables = made._model.variables()  # noqa: SLF001
    judge = Evaluator(made.evaluate_params, variables, tmp_path, Batches(), say=said.append, runtime=played(pause))
    running = in_thread(judge.run, "evaluator")

    def wait_for(step: int) -> Callable[[], None]:
        return lambda: None if looked[step].wait(30.0) else pytest.fail("not evaluated")

    mean_model(say=lambda _: None).fit(
        [ONES], 5, checkpoint_dir=tmp_path, hooks=[Saves({2: wait_for(2), 4: wait_for(4)})]
    )
    found = running.result(30.0)
    assert [(one.global_step, one.loss, one.examples) for one in found] == [
        (step, pytest.approx(expected(step)), 8) for step in (2, 4, 5)
    ]
    assert [line.split(",")[0] for line in lines_with(said, "evaluator: ")] == [
        f"evaluator: loss {expected(step):.4f}" for step in (2, 4, 5)
    ]
    curves = curves_in(tmp_path / "eval")
    assert [step for step, _ in curves["loss"]] == [2, 4, 5]
    np.testing.assert_allclose([value for _, value in curves["largest"]], [2.0] * 3)  # the mean of 1 and 3


def test_what_is_already_there(tmp_path: Path) -> None:
    mean_model(say=lambda _: None).fit([ONES], 5, checkpoint_dir=tmp_path, hooks=[Saves({1: nothing, 3: nothing})])
    found = evaluator(mean_model(), tmp_path, played(no_pause)).run()
    assert [one.global_step for one in found] == [1, 3, 5]


def test_a_complete_training_that_is_there_may_be_gone_on_with(tmp_path: Path) -> None:
    mean_model(say=lambda _: None).fit([ONES], 2, checkpoint_dir=tmp_path)
    clock = FakeClock()

    def pause(seconds: float) -> None:
        clock.now += 10 * seconds
        if clock.now == 1005.0:
            mean_model(say=lambda _: None).fit([ONES], 4, checkpoint_dir=tmp_path)

    found = evaluator(mean_model(), tmp_path, played(pause, clock), start_s=20.0).run()
    assert [one.global_step for one in found] == [2, 4]


def test_the_last_one_may_come_to_be_complete_afterwards(tmp_path: Path) -> None:
    """A checkpoint of the last step takes the place of one that did not know yet that it is the last."""
    went_on: list[str] = []

    def train(more: bool) -> None:
        class Stops(Hook):
            def after_run(self, session: MonitoredSession, report: StepReport) -> None:
                if report.global_step == 3 and not more:
                    session.save(wait=True)
                    raise OSError("gone")

        mean_model(say=lambda _: None).fit([ONES], 3 if more else 9, checkpoint_dir=tmp_path, hooks=[Stops()])

    with pytest.raises(OSError, match="gone"):
        train(more=False)

    def pause(_: float) -> None:
        went_on.append("")
        made = mean_model(say=lambda _: None)
        with MonitoredSession(made, checkpoint_dir=tmp_path) as session:
            session.request_stop("that is enough")

    found = evaluator(mean_model(), tmp_path, played(pause)).run()
    assert [one.global_step for one in found] == [3]
    assert len(went_on) == 1


def test_one_that_is_damaged_or_gone_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mean_model(say=lambda _: None).fit(
        [ONES], 5, checkpoint_dir=tmp_path, hooks=[Saves({1: nothing, 2: nothing, 3: nothing})]
    )
    home = CheckpointDirectory(tmp_path, pytest.fail)
    (home.path_of(1) / "manifest.json").unlink()
    steps, opened = home.steps(), CheckpointDirectory.path_of

    def path_of(self: CheckpointDirectory, step: int) -> Path:
        if step == 2:
            CheckpointDirectory(tmp_path, pytest.fail).retain(Retention(keep=1), protect=[1, 3, 5])
        return opened(self, step)

    monkeypatch.setattr(CheckpointDirectory, "path_of", path_of)
    said: list[str] = []
    found = evaluator(mean_model(), tmp_path, played(no_pause), said=said).run()
    assert steps == [1, 2, 3, 5]
    assert [one.global_step for one in found] == [3, 5]
    assert [line.split(":")[0] for line in lines_with(said, "could not evaluate")] == [
        "could not evaluate global step 1",
        "could not evaluate global step 2",
    ]


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    trainer(say=lambda _: None).fit(batches(2), checkpoint_dir=tmp_path)
    with pytest.raises(ModelMismatch, match="params/"):
        evaluator(mean_model(), tmp_path, played(no_pause)).run()


def test_a_directory_that_nobody_holds_is_given_up(tmp_path: Path) -> None:
    clock = FakeClock()
    said: list[str] = []
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        clock.now += 10.0
        if len(waits) <= 5:  # so long there is a job
            (tmp_path / LOCK_FILE).write_text(f"{len(waits)}", encoding="utf-8")
            stamp = 1_000_000_000 + len(waits)
            os.utime(tmp_path / LOCK_FILE, (stamp, stamp))

    judge = evaluator(mean_model(), tmp_path, played(pause, clock), said=said, abandoned_s=30.0)
    with pytest.raises(
        DeadlineExceeded, match=r"waited \d+\.0 s for a checkpoint in .*, the first; check that the job runs"
    ):
        judge.run()
    assert len(waits) == 5 + 3
    assert lines_with(said, "waiting for a checkpoint in")


def test_what_an_evaluator_task_needs(tmp_path: Path) -> None:
    class Beside:
        serves = False
        mesh_axes = ("data",)
        cluster = Cluster(
            spec=ClusterSpec({"worker": ["a:1"], "ps": ["b:1"], "evaluator": ["c:1"]}), task=Task("evaluator", 0)
        )

        def start(self, *_: Any) -> Any:
            raise AssertionError("joins")

        serve = start

    made = mean_model(strategy=Beside(), say=lambda _: None)
    for arguments in ({}, {"checkpoint_dir": tmp_path}, {"validation": [ONES]}):
        with pytest.raises(ClusterError, match="an evaluator task needs fit"):
            made.fit([ONES], 5, **arguments)
    mean_model(say=lambda _: None).fit([ONES], 5, checkpoint_dir=tmp_path)
    with pytest.raises(SystemExit) as caught:
        made.fit([ONES], 5, checkpoint_dir=tmp_path, validation=[ONES])
    assert caught.value.code == 0
    assert [step for step, _ in curves_in(tmp_path / "eval")["loss"]] == [5]
