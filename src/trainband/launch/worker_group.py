"""Tasks that can only train together: whose failure it was that ended them, and who goes on without whom.

Where gradients are reduced between the workers, a worker that dies takes all the others with it: each of them fails
soon after. So one of several failures is the cause, and it is all of them that must be started again.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainband.cluster.task import Task

LOST_A_PEER = 75
"""The exit code of a task that ends because another has gone, and so is not the cause: the system's EX_TEMPFAIL."""
SIMULTANEOUS_S = 0.2
"""Seconds within which failures count as one: the system may tell of a survivor's end before it tells of the death
that was its cause, because a dying process closes its connections first and has its memory and its card freed then."""
CAUSE_WAIT_S = 5.0
"""Seconds to wait for a cause to show up when all that have failed so far say that they have lost a peer: a program
that ends by an exception may close its connections and then have much to clear up, and a chief stays for some seconds
for the others to read its last words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerGroup:
    """The tasks of a job that train together.

    Attributes:
      tasks: all of them, a chief too.
      min_workers: how many workers must remain, a chief not counted.
    """

    tasks: frozenset[Task]
    min_workers: int

    @property
    def workers(self) -> int:
        """How many they are, without a chief."""
        return sum(task.job == "worker" for task in self.tasks)

    def without(self, task: Task) -> WorkerGroup | None:
        """The group of one worker fewer, numbered without a gap; `None` where too few, or no chief, would remain."""
        if task.job != "worker" or self.workers <= self.min_workers:
            return None
        last = Task("worker", self.workers - 1)
        return WorkerGroup(tasks=self.tasks - {last}, min_workers=self.min_workers)


def first_to_fail(failures: Sequence[tuple[Task, int]]) -> tuple[Task, int]:
    """Which of the failures of one instant was the cause: the first that was killed, else the first that lost no peer.

    Args:
      failures: at least one, in the order in which they were seen; each task with its exit code, or minus the
        signal's number.
    """
    return max(failures, key=lambda failure: _suspicion(failure[1]))  # of equals, the first


def stuck_task(failures: Sequence[tuple[Task, int]], alive: frozenset[Task], tasks: frozenset[Task]) -> Task | None:
    """The task of a group that all others have lost, and that has not ended for all that; `None` where there is none.

    Args:
      failures: see `first_to_fail`.
      alive: those of the group that run.
      tasks: all of the group.
    """
    lost_it = {task for task, status in failures if _suspicion(status) == 0}
    return next(iter(alive)) if len(alive) == 1 and lost_it == tasks - alive else None


def cause_wait_s(failures: Sequence[tuple[Task, int]]) -> float:
    """How long, in seconds, the cause of these failures may still be to come; 0 where it is among them for certain."""
    return (CAUSE_WAIT_S, SIMULTANEOUS_S, 0.0)[max(_suspicion(status) for _, status in failures)]


def _suspicion(status: int) -> int:
    """0: was not the cause. 1: may have been. 2: was, for no failure of another leads to such an end.

    SIGABRT says nothing: JAX aborts a process whose peer has gone.
    """
    if status == LOST_A_PEER:
        return 0
    return 2 if status < 0 and status != -signal.SIGABRT else 1


def most_to_blame(failures: Mapping[Task, int], latest: Task) -> Task:
    """The task that failed most often, the latest of them where several did equally often."""
    return max(failures, key=lambda task: (failures[task], task == latest))
