"""Events and instructions of the supervision, and the outcome of a job."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trainband.cluster.task import Task
from trainband.runtime.input_errors import INPUT_ERROR

OUT_OF_MEMORY = -(128 + signal.SIGKILL)
"""The status of a task that the kernel has killed for want of memory."""

_MORE_MEMORY = {
    "ps": "; use more ps, each of which holds less (--ps), or a machine or container with more memory",
    "worker": "; use a machine or container with more memory, fewer workers on it, or a smaller batch",
}


@dataclass(frozen=True, slots=True)
class Exited:
    """A task has exited.

    Attributes:
      status: its exit code, minus the number of the signal that killed it, or `OUT_OF_MEMORY`.
      address_lost: whether it can run again, but not at its address.
    """

    task: Task
    status: int
    address_lost: bool = False


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The launcher received a signal: SIGINT, SIGTERM or SIGHUP."""

    signal_number: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The caller ended the job without a signal."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """A task runs again, as `Restart` or `RestartGroup` asked."""

    task: Task


@dataclass(frozen=True, slots=True)
class NotRestarted:
    """The tasks of `RestartGroup` cannot be restarted.

    Attributes:
      reason: why, as text.
      signal_number: the signal to the launcher that aborted the restart; 0 if none did.
    """

    tasks: tuple[Task, ...]
    reason: str
    signal_number: int = 0


Event: TypeAlias = Exited | Interrupted | Closed | Tick | Restarted | NotRestarted


@dataclass(frozen=True, slots=True)
class Send:
    """Send a signal to a task and all processes that it has started."""

    task: Task
    signal_number: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart a task."""

    task: Task


@dataclass(frozen=True, slots=True)
class RestartGroup:
    """Restart the worker group, or a job whose ps has lost its address, with exactly these tasks, at new addresses."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the user."""

    text: str


Instruction: TypeAlias = Send | Restart | RestartGroup | Say


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a job ended.

    Attributes:
      kind: `succeeded`, `failed` (a task did) or `interrupted` (by a signal to the launcher).
      exit_code: the launcher's: 0, the failed task's exit code, or 128 + the signal's number.
      failed: the first task that failed; `None` if none did, or the platform ended the job.
      reason: why, as text.
    """

    kind: Literal["succeeded", "failed", "interrupted"]
    exit_code: int
    failed: Task | None = None
    reason: str = ""

    @classmethod
    def of_failure(cls, task: Task, status: int) -> Outcome:
        """Returns the outcome of a job that failed because a task exited with this status; see `Exited`."""
        advice = _MORE_MEMORY.get(task.job, "") if status == OUT_OF_MEMORY else ""
        return cls(kind="failed", exit_code=exit_code_of(status), failed=task, reason=describe_status(status) + advice)


def exit_code_of(status: int) -> int:
    """Returns an exit status, see `Exited`, as a shell shows it."""
    return status if status >= 0 else -status if status == OUT_OF_MEMORY else 128 - status


def describe_status(status: int) -> str:
    """Returns an exit status as text: `exit code 3`, or `killed by SIGSEGV`."""
    if status == OUT_OF_MEMORY:
        return "killed by the kernel: out of memory"
    if status == INPUT_ERROR:
        return f"exit code {status}: invalid input or model, so a restart would fail again"
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
