"""What is said at the end of a training of where the time went."""

from __future__ import annotations

from typing import Any

import pytest
from tests.train.fakes import ONES, mean_model

from trainband.runtime.step_times import StepTimes
from trainband.strategies.base import Progress, WorkerRow
from trainband.train import time_report
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


def look(*rows: WorkerRow) -> Progress:
    return Progress(1000, None, 10.0, None, rows)


def worker(number: int, presence: str = "live", rate: float = 1.0, **time: float) -> WorkerRow:
    return WorkerRow(f"worker:{number}", presence, rate, 0.0, None, time)


def test_one_task_alone_has_a_line_for_each_part() -> None:
    report = report_of(compute=20.0, data=70.0)
    report.note(Progress(1000, None, 10.0, 0.5, (WorkerRow("worker:0", "live", 10.0, 0.0, 0.5),)))
    head, *lines = report.text("worker:0").split("\n")
    assert head == "where the time went, in 1,000 steps and 1 min 40 s after the first one:"
    assert [line.split()[0] for line in lines] == ["70.0%", "20.0%", "10.0%", "70%"]
    assert lines[-1].startswith("70% of the time is spent waiting for data: prepare batches faster")


def test_several_workers_have_a_row_each_and_advice_for_all() -> None:
    report = report_of(compute=20.0, ps=80.0)
    report.note(look(worker(0, compute=0.9), worker(10, compute=0.5, ps=0.5), worker(2, compute=0.4, ps=0.6)))
    report.note(look(worker(10, compute=0.3, ps=0.7), worker(3, "lost", compute=1.0)))
    assert report.text("worker:0").split("\n") == [
        "where the workers' time went, in 1 min 40 s after the first step of worker:0:",
        "           compute       ps",
        "worker:0       20%      80%",  # itself it knows exactly
        "worker:2       40%      60%",
        "worker:10      40%      60%",
        "workers spend 67% of their time at the ps: under Sync, workers wait for the slowest: use balance='speed' or "
        "backups=1, or Async(); where they are alike, add a ps, or let workers compute more a step.",
    ]


def test_of_many_workers_the_mean_and_the_extremes_are_shown() -> None:
    report = report_of(compute=100.0)
    report.note(look(*(worker(n, rate=1.0 + n % 7 - (n == 9) * 5, compute=1.0) for n in range(MOST_ROWS + 1))))
    rows = report.text("worker:0").split("\n")[2:]
    assert [row.rpartition("  ")[0].strip() for row in rows] == ["mean of 11", "slowest, worker:9", "fastest, worker:6"]


def test_a_worker_says_that_others_wait_for_its_data() -> None:
    told = report_of(data=40.0, compute=60.0).waits_for_data("worker:1")
    assert told == "worker:1 spends 40% of its time waiting for data, and all other workers wait for it."
    assert report_of(data=10.0, compute=90.0).waits_for_data("worker:1") == ""


@pytest.mark.parametrize(("steps", "seconds", "worth"), [(1000, 100.0, True), (10, 100.0, False), (1000, 5.0, False)])
def test_a_trial_is_not_worth_telling(steps: int, seconds: float, worth: bool) -> None:
    assert report_of(steps, seconds).is_worth_telling is worth


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
