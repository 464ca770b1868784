"""Workers that can train only together: which failure was the cause, and which workers continue.

If workers reduce their gradients together, one that dies takes the others with it: each of them fails soon after. Only
one of these failures is the cause, and all workers must be restarted.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainband.cluster.task import Task

LOST_A_PEER = 75
"""The exit code of a task that ends because it lost a peer and thus is not the cause: the system's EX_TEMPFAIL."""
SIMULTANEOUS_S = 0.2
"""Seconds within which failures count as one. The system may report a survivor's exit before the death that caused it,
because a dying process closes its connections first, and its memory and its GPU are freed later."""
CAUSE_WAIT_S = 5.0
"""Seconds to wait for the cause while every failure seen so far is a lost peer: a program that ends with an exception
may close its connections and then take long to clean up, and a chief stays for some seconds so that the others can
read its last message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerGroup:
    """The tasks of a job that train together.

    Attributes:
      tasks: all of them, including a chief.
      min_workers: how many workers must remain, not counting a chief.
    """

    tasks: frozenset[Task]
    min_workers: int

    @property
    def workers(self) -> int:
        """The number of workers, not counting a chief."""
        return sum(task.job == "worker" for task in self.tasks)

    def without(self, task: Task) -> WorkerGroup | None:
        """Returns a group with one worker less, numbered without gaps; `None` if too few workers or no chief remain."""
        if task.job != "worker" or self.workers <= self.min_workers:
            return None
        last = Task("worker", self.workers - 1)
        return WorkerGroup(tasks=self.tasks - {last}, min_workers=self.min_workers)


def first_to_fail(failures: Sequence[tuple[Task, int]]) -> tuple[Task, int]:
    """Returns the cause of simultaneous failures: the first task killed, else the first that did not lose a peer.

    Args:
      failures: at least one, in the order in which they were seen: a task and its exit code, or minus the signal's
        number.
    """
    return max(failures, key=lambda failure: _suspicion(failure[1]))  # the first of equals


def stuck_task(failures: Sequence[tuple[Task, int]], alive: frozenset[Task], tasks: frozenset[Task]) -> Task | None:
    """Returns the running task that all others of its group have lost; `None` without one.

    Args:
      failures: as for `first_to_fail`.
      alive: the tasks of the group that run.
      tasks: all tasks of the group.
    """
    lost_a_peer = {task for task, status in failures if _suspicion(status) == 0}
    return next(iter(alive)) if len(alive) == 1 and lost_a_peer == tasks - alive else None


def cause_wait_s(failures: Sequence[tuple[Task, int]]) -> float:
    """Returns how many seconds the cause of these failures may take to appear; 0 if it certainly is one of them."""
    return (CAUSE_WAIT_S, SIMULTANEOUS_S, 0.0)[max(_suspicion(status) for _, status in failures)]


def _suspicion(status: int) -> int:
    """0: not the cause. 1: possibly. 2: certainly, because no peer's failure leads to such an exit.

    SIGABRT proves nothing, because JAX aborts a process that has lost a peer.
    """
    if status == LOST_A_PEER:
        return 0
    return 2 if status < 0 and status != -signal.SIGABRT else 1


def most_to_blame(failures: Mapping[Task, int], latest: Task) -> Task:
    """Returns the task that failed most often; of several, the latest."""
    return max(failures, key=lambda task: (failures[task], task == latest))
