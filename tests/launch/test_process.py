"""A task's process: who killed it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from tests.programs import until

from trainband.cluster.task import Task
from trainband.launch.events import OUT_OF_MEMORY
from trainband.launch.process import Reaper, TaskProcess
from trainband.runtime.available_memory import OomKills


class Kills(OomKills):
    """So many kills by the kernel that no task's exit has explained yet."""

    def __init__(self, count: int) -> None:
        self.count = count

    def take(self) -> bool:
        self.count -= 1
        return self.count >= 0


@pytest.fixture
def reaper() -> Iterator[Reaper]:
    one = Reaper(stop_s=1.0)
    yield one
    one.close()


def exit_of(program: str, kills: Kills, reaper: Reaper, number: int = 0) -> int:
    """The status of a task that runs this and that the launcher sends this signal."""
    task = TaskProcess(Task("ps", 0), ["-c", program], environ={}, reaper=reaper, keep_lines=0, oom_kills=kills)
    try:
        if number:
            task.send(number)
        until(lambda: task.status() is not None, "its exit")
        assert task.status() == task.status()
        status = task.status()
        assert status is not None
        return status
    finally:
        task.close()


@pytest.mark.parametrize("program", ["import os; os.kill(os.getpid(), 9)", "raise SystemExit(137)"])
def test_a_task_killed_while_the_kernel_killed_for_want_of_memory(program: str, reaper: Reaper) -> None:
    kills = Kills(1)
    assert exit_of(program, kills, reaper) == OUT_OF_MEMORY
    assert exit_of(program, kills, reaper) != OUT_OF_MEMORY, "one kill explains one exit"


def test_a_task_that_ends_otherwise(reaper: Reaper) -> None:
    kills = Kills(9)
    assert exit_of("raise SystemExit(3)", kills, reaper) == 3
    assert exit_of("import time; time.sleep(60)", kills, reaper, signal.SIGKILL) == -signal.SIGKILL
    assert kills.count == 9
