"""What is said at the end of a training of where the time went."""

from __future__ import annotations

import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.programs import until
from tests.train.fakes import ONES, mean_model, trainer

from trainband.runtime import SystemRuntime
from trainband.runtime.step_times import Since, StepTimes
from trainband.strategies.base import Progress, StepReport, WorkerRow
from trainband.train import Hook, MonitoredSession, time_report
from trainband.train.device_wait import DeviceWait
from trainband.train.time_report import MOST_ROWS, TimeReport


def report_of(steps: int = 1000, seconds: float = 100.0, **spent: float) -> TimeReport:
    """Of a task that has spent so many seconds on each part."""
    now = [0.0]
    times = StepTimes()
    report = TimeReport(times, lambda: now[0])
    now[0], times.steps = seconds, steps
    for part, value in spent.items():
        setattr(times, part, value)
    return report


def sample(*rows: WorkerRow) -> Progress:
    return Progress(1000, None, 10.0, None, rows)


def worker(number: int, presence: str = "live", rate: float = 1.0, **time: float) -> WorkerRow:
    return WorkerRow(f"worker:{number}", presence, rate, 0.0, None, time)


def test_one_task_alone_has_a_line_for_each_part() -> None:
    report = report_of(compute=20.0, data=70.0)
    report.record(Progress(1000, None, 10.0, 0.5, (WorkerRow("worker:0", "live", 10.0, 0.0, 0.5),)))
    head, *lines = report.text("worker:0").split("\n")
    assert head == "where the time went, in 1,000 steps and 1 min 40 s after the first one:"
    assert [line.split()[0] for line in lines] == ["70.0%", "20.0%", "10.0%", "70%"]
    assert lines[-1].startswith("70% of the time is spent waiting for data: prepare batches faster")


def test_several_workers_have_a_row_each_and_advice_for_all() -> None:
    report = report_of(compute=20.0, ps=80.0)
    report.record(sample(worker(0, compute=0.9), worker(10, compute=0.5, ps=0.5), worker(2, compute=0.4, ps=0.6)))
    report.record(sample(worker(10, compute=0.3, ps=0.7), worker(3, "lost", compute=1.0)))
    assert report.text("worker:0").split("\n") == [
        "where the workers' time went, in 1 min 40 s after the first step of worker:0:",
        "           compute       ps",
        "worker:0       20%      80%",  # itself it knows exactly
        "worker:2       40%      60%",
        "worker:10      40%      60%",
        "workers spend 67% of their time at the ps: under Sync, workers wait for the slowest: use balance='speed' or "
        "backups=1, or Async(); if they are alike, add a ps, or let workers compute more in a step.",
    ]


def test_of_many_workers_the_mean_and_the_extremes_are_shown() -> None:
    report = report_of(compute=100.0)
    report.record(sample(*(worker(n, rate=1.0 + n % 7 - (n == 9) * 5, compute=1.0) for n in range(MOST_ROWS + 1))))
    rows = report.text("worker:0").split("\n")[2:]
    assert [row.rpartition("  ")[0].strip() for row in rows] == ["mean of 11", "slowest, worker:9", "fastest, worker:6"]


def test_a_worker_says_that_others_wait_for_its_data() -> None:
    told = report_of(data=40.0, compute=60.0).waits_for_data("worker:1")
    assert told == "worker:1 spends 40% of its time waiting for data, and all other workers wait for it."
    assert report_of(data=10.0, compute=90.0).waits_for_data("worker:1") == ""


@pytest.mark.parametrize(("steps", "seconds", "worth"), [(1000, 100.0, True), (10, 100.0, False), (1000, 5.0, False)])
def test_a_trial_is_not_worth_telling(steps: int, seconds: float, worth: bool) -> None:
    assert report_of(steps, seconds).is_worth_reporting is worth


class ReadsTheLoss(Hook):
    """Waits for each step."""

    def after_run(self, session: MonitoredSession, report: StepReport) -> None:
        del session
        float(report.loss)


@pytest.mark.parametrize("whose", ["hook", "loop"])
def test_whoever_reads_the_loss_waits_for_the_device(whose: str) -> None:
    matrix = np.ones((500, 500), np.float32)  # some 10 ms a step

    def loss(params: Any, batch: Any) -> Any:
        return jax.lax.fori_loop(0, 4, lambda _, x: jnp.tanh(x @ x), params["w"] * batch).mean()

    params = {"w": jnp.ones((500, 500))}
    alone, alone_s = jax.jit(loss), list[float]()
    for _ in range(5):
        began = time.monotonic()
        float(alone(params, matrix))
        alone_s.append(time.monotonic() - began)
    one = trainer(init=lambda _: params, loss=loss)
    with MonitoredSession(one, hooks=[ReadsTheLoss()] if whose == "hook" else [], console=False) as session:
        for _ in range(3):
            float(session.run(matrix).loss)
        since = Since(one.join().steps.times, time.monotonic())
        for _ in range(10):
            float(session.run(matrix).loss)
        session.run(matrix)
        spent = since.spent(time.monotonic())
    assert spent.seconds["compute"] > 10 * min(alone_s), spent  # a step computes the gradient, too


class Loss:
    """A step's loss, which is there when the test says so."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def is_ready(self) -> bool:
        return self.done.is_set()

    def block_until_ready(self) -> None:
        assert self.done.wait(20.0)


def test_only_the_time_until_the_loss_is_there_counts_as_computing() -> None:
    now, times = [0.0], StepTimes()
    wait = DeviceWait(times, SystemRuntime(lambda: now[0]))

    def between(computes: float, then: float, data: float = 0.0) -> float:
        """What is noted of a step that the device computes for so long, after which hooks go on."""
        before, loss = times.compute, Loss()
        wait.start(loss)
        now[0] += computes
        loss.done.set()
        until(lambda: wait.ready_at == now[0], "the thread")
        now[0] += then
        times.data += data
        wait.end()
        return times.compute - before

    wait.ready_at = 1.0  # the first one has no thread yet
    assert between(1.0, 0.0) == 0.0
    assert between(1.0, 2.0) == pytest.approx(1.0)
    assert between(1.0, 2.0, data=2.5) == pytest.approx(0.5)  # 3 s, of which 2.5 are known
    unread = Loss()
    wait.start(unread)
    now[0] += 1.0
    before = times.compute
    wait.end()  # nobody has waited for it, and the next step will
    assert times.compute == before
    unread.done.set()
    wait.close()


@pytest.mark.smoke
def test_the_chief_tells_it_once_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_report, "MIN_S", 0.0)
    said: list[str] = []
    show: dict[str, Any] = {"console": True, "say": said.append}
    mean_model(**show).fit([ONES], 30)
    assert [text.split("\n")[0].partition(",")[0] for text in said] == ["where the time went"]
    assert "29 steps" in said[0]
    mean_model(**show).fit([ONES], 10)  # too few steps
    mean_model(console=False).fit([ONES], 30)  # pytest.fail takes what is said
    assert len(said) == 1
