"""What `bench.chaos` says was lost or applied twice: histories by hand, each with one thing wrong, and whole ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from bench.chaos import Account, account
from bench.tasks.trainband_chaos import LIVES
from bench.timeline import Absence, count_present, longest_gap, possible, update_moments
from bench.traced_job import PS, STEP, WORKER_TASKS, WORKERS, Ending, Steps, TracedJob

KILLED = -9


def steps_of(*rows: tuple[int, int, int, float, bool]) -> Steps:
    """Steps of (worker, life, global step, when it ended, whether it was applied)."""
    steps = np.zeros(len(rows), STEP)
    for name, column in zip(
        ("worker", "life", "global_step", "ended_s", "applied"), zip(*rows, strict=True), strict=True
    ):
        steps[name] = column
    return steps


def job_of(codes: dict[str, list[int]]) -> TracedJob:
    """A job whose workers' processes have ended with these codes, one for each life."""
    lives = {
        task: [SimpleNamespace(number=number, code=code) for number, code in enumerate(codes.get(task, [0]))]
        for task in WORKER_TASKS
    }
    return cast(TracedJob, SimpleNamespace(tasks=SimpleNamespace(lives=lives)))


def ending(counts: dict[tuple[int, int], int], *, more: tuple[int, int] = (0, 0)) -> Ending:
    """The counters of both shards: of each worker's life, so many; `more` on top of that in each shard."""
    counters = np.zeros((PS, WORKERS * LIVES + 1))
    for (worker, life), count in counts.items():
        counters[:, worker * LIVES + life] = count
    counters[:, 0] += more
    counters[:, -1] = counters[:, :-1].sum(axis=1)
    return Ending(loss=0.0, counters=counters, versions=tuple(int(total) for total in counters[:, -1]))


THREE = steps_of((0, 0, 1, 1.0, True), (1, 0, 2, 2.0, True), (0, 0, 3, 3.0, True))


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("more", "lost", "twice"), [((0, 0), [0, 0], [0, 0]), ((0, -1), [0, 1], [0, 0]), ((2, 0), [0, 0], [2, 0])]
)
def test_what_was_told_is_compared_with_what_was_counted(
    more: tuple[int, int], lost: list[int], twice: list[int]
) -> None:
    found = account(job_of({}), THREE, ending({(0, 0): 2, (1, 0): 1}, more=more), "async")
    assert (found.told, found.unsure, found.lost, found.twice) == (3, 0, lost, twice)
    assert found.counted == [3 + extra for extra in more]


@pytest.mark.parametrize(("counted", "twice"), [(2, [0, 0]), (3, [0, 0]), (4, [1, 1])])
def test_a_push_under_way_at_a_death_may_be_there_once(counted: int, twice: list[int]) -> None:
    codes = {"worker:0": [KILLED, 0]}
    found: Account = account(job_of(codes), THREE, ending({(0, 0): counted, (1, 0): 1}), "async")
    assert (found.lost, found.twice, found.unsure) == ([0, 0], twice, 1)


def test_the_lives_of_a_worker_are_counted_apart() -> None:
    steps = steps_of((0, 0, 1, 1.0, True), (0, 1, 2, 2.0, True), (0, 1, 3, 3.0, True))
    codes = {"worker:0": [KILLED, 0]}
    assert account(job_of(codes), steps, ending({(0, 0): 1, (0, 1): 2}), "async").lost == [0, 0]
    swapped = account(job_of(codes), steps, ending({(0, 0): 2, (0, 1): 1}), "async")
    assert swapped.lost == [1, 1]  # though the sums are the same


def test_under_sync_updates_are_compared() -> None:
    steps = steps_of((0, 0, 1, 1.0, True), (1, 0, 1, 1.1, True), (0, 0, 2, 2.0, True), (1, 0, 2, 2.1, True))
    whole = ending({(0, 0): 2})
    assert account(job_of({}), steps, whole, "sync").lost == [0, 0]
    short = Ending(loss=0.0, counters=whole.counters, versions=(2, 1))
    found = account(job_of({}), steps, short, "sync")
    assert (found.lost, found.twice) == ([0, 1], [0, 1])
    assert update_moments(steps, "sync").tolist() == [1.0, 2.0]
    assert len(update_moments(steps, "async")) == 4


def test_what_the_workers_that_are_there_could_give() -> None:
    absences = [Absence("worker:1", 2.0, 4.0), Absence("worker:1", 3.0, 5.0), Absence("worker:3", 4.0, 5.0)]
    present = count_present(np.array([1.0, 2.5, 3.5, 4.5, 5.5]), absences)
    assert present.tolist() == [WORKERS, WORKERS - 1, WORKERS - 1, WORKERS - 2, WORKERS]
    rates: dict[int, float] = {WORKERS: 100.0, WORKERS - 1: 75.0, WORKERS - 2: 50.0}
    assert possible(0.0, 10.0, absences, rates.__getitem__) == pytest.approx(7 * 100 + 2 * 75 + 50, rel=0.01)


def test_the_longest_time_without_an_update() -> None:
    moments: Any = np.array([1.0, 2.0, 5.0, 5.5, 9.0])
    assert longest_gap(moments, 3.0, 5.2) == 3.0  # it began before
    assert longest_gap(moments, 5.1, 5.4) == 0.5
