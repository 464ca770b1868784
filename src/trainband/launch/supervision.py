"""The supervision of a job's tasks as a pure state machine: events in, instructions out.

It has no processes, clocks or signals; `SupervisedCluster` is the thin shell around it.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from trainband.cluster.task import Task
from trainband.cluster.worker_group import WorkerGroup, cause_wait_s, first_to_fail, most_to_blame, stuck_task
from trainband.launch.events import (
    Closed,
    Event,
    Exited,
    Instruction,
    Interrupted,
    NotRestarted,
    Outcome,
    Restart,
    Restarted,
    RestartGroup,
    Say,
    Send,
    Tick,
)
from trainband.launch.options import Grace, Restarts
from trainband.runtime.input_errors import INPUT_ERROR

ECHO_S = 0.5
"""Seconds within which a second signal counts as an echo of the first: a closing terminal signals both the launcher and
the shell, which forwards it; and wrappers forward a Ctrl-C that the terminal has already sent."""


class Phase(enum.Enum):
    """The phase of a job."""

    RUNNING = enum.auto()
    DIAGNOSING = enum.auto()
    """A task of the worker group has failed; a failure right after it may be the cause."""
    STOPPING_GROUP = enum.auto()
    """The worker group will restart; its running tasks have been sent SIGTERM."""
    KILLING_GROUP = enum.auto()
    """They have been sent SIGKILL."""
    ENDING = enum.auto()
    """Every worker has succeeded; the ps have some time to exit."""
    STOPPING = enum.auto()
    """All but the ps have been sent SIGTERM. The ps follow when the others have exited, because the chief may save."""
    KILLING = enum.auto()
    """All tasks have been sent SIGKILL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRestart:
    """A pending restart of the worker group.

    Attributes:
      group: the group after the restart.
      at_s: the earliest time, in seconds of the caller's clock; the running tasks must exit first.
      cause: the failure that made it necessary; the job's outcome if they do not exit.
      only_once: whether the tasks are restarted together only this time, because a ps has lost its address.
    """

    group: WorkerGroup
    at_s: float
    cause: Outcome
    only_once: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Supervision:
    """The state of a job. Times are seconds of the caller's clock.

    Attributes:
      alive: the tasks that run.
      tasks: all tasks of a job with ps, which restart together if a ps loses its address.
      grace: how long each phase may last.
      restarts: how often a task is restarted.
      group: the tasks that are restarted together; `None` if each is restarted alone.
      group_restart: the pending restart of the group; `None` while the group runs.
      suspects: the failures in the group that may be the cause, in the order in which they were seen.
      failures: for each task, its failures in a row; for a task of the group, how often it was the cause.
      restarted_at: when each restarted task began to run.
      restart_at: when each pending task will be restarted.
      phase: the phase of the job.
      deadline: when the phase ends; `None` while the job trains.
      verdict: the outcome, once it is decided.
    """

    alive: frozenset[Task]
    tasks: frozenset[Task] = frozenset()
    grace: Grace = field(default_factory=Grace)
    restarts: Restarts = field(default_factory=Restarts)
    group: WorkerGroup | None = None
    group_restart: GroupRestart | None = None
    suspects: tuple[tuple[Task, int], ...] = ()
    failures: Mapping[Task, int] = field(default_factory=dict)
    restarted_at: Mapping[Task, float] = field(default_factory=dict)
    restart_at: Mapping[Task, float] = field(default_factory=dict)
    phase: Phase = Phase.RUNNING
    deadline: float | None = None
    verdict: Outcome | None = None

    @property
    def next_s(self) -> float | None:
        """The latest time for the next `Tick`."""
        times = [*self.restart_at.values(), *([] if self.deadline is None else [self.deadline])]
        if self.group_restart is not None and not self.group_alive:
            times.append(self.group_restart.at_s)
        return min(times, default=None)

    @property
    def group_alive(self) -> frozenset[Task]:
        """The running tasks of the worker group."""
        return frozenset() if self.group is None else self.alive & self.group.tasks

    @property
    def outcome(self) -> Outcome | None:
        """How the job ended; `None` while a task runs or is to be restarted."""
        if self.alive or self.restart_at or self.group_restart is not None:
            return None
        return self.verdict or Outcome(kind="succeeded", exit_code=0)


Transition: TypeAlias = tuple[Supervision, list[Instruction]]


def advance(state: Supervision, event: Event, now: float) -> Transition:
    """Returns the state after an event, and what to do.

    A job succeeds when every worker, the chief and the evaluator have exited with 0, and then the ps. A ps that does
    not exit by itself is stopped, with a message, but does not fail the job. A failed task is restarted as often as
    `Restarts` allows, and not at all after an error that it would repeat (`INPUT_ERROR`); then the job fails, and all
    other tasks get SIGTERM, then SIGKILL. A failed evaluator does not stop other tasks, but the job ends as failed. If
    a task of the worker group fails, the whole group is restarted, including tasks that have succeeded; if that does
    not help, it continues without the failing worker as long as enough workers remain. If a ps fails and cannot run
    again at its address, the others would not find it: the whole job is restarted at new addresses. A signal to the
    launcher interrupts the job; a second one, unless it is an echo of the first, kills it.

    Args:
      now: seconds of the caller's clock.
    """
    match event:
        case Exited(task, status, address_lost):
            return _exited(state, task, status, now, address_lost=address_lost)
        case Interrupted(number):
            return _interrupted(state, number, now)
        case Closed():
            return _closed(state, now)
        case Tick() if state.alive and state.deadline is not None and now >= state.deadline:
            return _deadline_passed(state, now)
        case Tick():
            return _restart_what_is_due(state, now)
        case Restarted(task):
            return replace(state, restarted_at={**state.restarted_at, task: now}), []
        case NotRestarted(tasks, reason, number):
            return _not_restarted(state, tasks, reason, number, now)


def _restart_what_is_due(state: Supervision, now: float) -> Transition:
    ready = [task for task, at in state.restart_at.items() if now >= at]
    later = {task: at for task, at in state.restart_at.items() if task not in ready}
    state = replace(state, restart_at=later, alive=state.alive | set(ready))
    todo: list[Instruction] = [Restart(task) for task in ready]
    restart = state.group_restart
    if restart is not None and not state.group_alive and now >= restart.at_s:
        tasks = restart.group.tasks
        group = None if restart.only_once else restart.group
        state = replace(state, group=group, group_restart=None, alive=state.alive | tasks)
        todo.append(RestartGroup(tuple(_in_order(tasks))))
    return state, todo


def _exited(state: Supervision, task: Task, status: int, now: float, *, address_lost: bool) -> Transition:
    if task not in state.alive:
        return state, []
    state = replace(state, alive=state.alive - {task})
    if state.phase is Phase.STOPPING and task.job != "ps" and state.alive and _only_ps(state.alive):
        return state, _send_all(state.alive, signal.SIGTERM)
    if state.phase in (Phase.STOPPING, Phase.KILLING):
        return state, []
    if state.group is not None and task in state.group.tasks and (status != 0 or state.phase is not Phase.RUNNING):
        return _exited_from_group(state, state.group, task, status, now)
    todo: list[Instruction] = []
    if address_lost and state.phase is Phase.RUNNING and state.restarts.limit:
        return _restart_all(state, task, status, now)
    if status != 0:
        cause = Outcome.of_failure(task, status)
        failures = 1 if _has_settled(state, task, now) else state.failures.get(task, 0) + 1
        if failures <= state.restarts.limit and status != INPUT_ERROR:
            return _restart_later(state, task, cause.reason, failures, now)
        if task.job != "evaluator":
            return _fail(state, task, cause, now)
        state = replace(state, verdict=cause)
        todo = [Say(f"{task} failed ({cause.reason})" + ("; training continues" if state.alive else ""))]
    remaining = state.alive | set(state.restart_at)
    if state.phase is Phase.RUNNING and remaining and _only_ps(remaining):
        state = replace(state, phase=Phase.ENDING, deadline=now + state.grace.ps_s)
    return state, todo


def _has_settled(state: Supervision, task: Task, now: float) -> bool:
    """Whether a task has run long enough that its earlier failures no longer count."""
    began = state.restarted_at.get(task)
    return began is not None and now - began >= state.restarts.settled_s


def _restart_later(state: Supervision, task: Task, reason: str, failures: int, now: float) -> Transition:
    delay_s, limit = state.restarts.delay_s(failures), state.restarts.limit
    state = replace(
        state, failures={**state.failures, task: failures}, restart_at={**state.restart_at, task: now + delay_s}
    )
    return state, [Say(f"{task} failed ({reason}); restarting it in {delay_s:g} s ({failures} of {limit})")]


def _restart_all(state: Supervision, task: Task, status: int, now: float) -> Transition:
    """Handles a ps that cannot return to its address: restarts all tasks but an evaluator at new ones."""
    tasks = frozenset(t for t in state.tasks if t.job != "evaluator")
    workers = sum(t.job == "worker" for t in tasks)
    later = {t: at for t, at in state.restart_at.items() if t not in tasks}
    state = replace(state, group=WorkerGroup(tasks=tasks, min_workers=workers), restart_at=later)
    assert state.group is not None
    state, todo = _group_failed(state, state.group, task, Outcome.of_failure(task, status), now)
    if state.group_restart is not None:
        state = replace(state, group_restart=replace(state.group_restart, only_once=True))
    return state, todo


def _not_restarted(state: Supervision, tasks: tuple[Task, ...], reason: str, number: int, now: float) -> Transition:
    outcome = Outcome(kind="failed", exit_code=1, failed=tasks[0], reason=reason)
    if number:
        name = signal.Signals(number).name
        outcome = Outcome(kind="interrupted", exit_code=128 + number, reason=name)
        reason = f"received {name}"
    text = f"the job cannot restart: {reason}" + _names(state.alive - set(tasks), "; stopping ")
    return _stop(replace(state, alive=state.alive - set(tasks), verdict=outcome), text, now)


def _fail(state: Supervision, task: Task, cause: Outcome, now: float) -> Transition:
    text = f"{task} failed ({cause.reason})" + _names(state.alive, "; stopping the others: ")
    return _stop(replace(state, verdict=cause), text, now)


def _exited_from_group(state: Supervision, group: WorkerGroup, task: Task, status: int, now: float) -> Transition:
    """Handles a task of the worker group that failed, or exited after another one failed."""
    if state.group_restart is not None:
        return state if state.group_alive else replace(state, phase=Phase.RUNNING, deadline=None), []
    if status != 0:
        state = replace(state, suspects=(*state.suspects, (task, status)))
    until = now + cause_wait_s(state.suspects)
    if until <= now or not state.group_alive:
        return _diagnose(state, group, now)
    deadline = until if state.deadline is None else min(until, state.deadline)
    return replace(state, phase=Phase.DIAGNOSING, deadline=deadline), []


def _diagnose(state: Supervision, group: WorkerGroup, now: float) -> Transition:
    """Decides which of the simultaneous failures was the cause, and how the group continues."""
    task, status = first_to_fail(state.suspects)
    cause = Outcome.of_failure(task, status)
    stuck = stuck_task(state.suspects, state.group_alive, group.tasks)
    if stuck is None:
        return _group_failed(state, group, task, cause, now)
    cause = replace(cause, failed=stuck, reason="it is stuck: all its peers have lost it")
    state, todo = _group_failed(state, group, stuck, cause, now)
    return state, [*todo, Send(stuck, signal.SIGKILL)]  # it cannot react to SIGTERM


def _group_failed(state: Supervision, group: WorkerGroup, task: Task, cause: Outcome, now: float) -> Transition:
    limit = state.restarts.limit
    failures = {} if _has_settled(state, task, now) else {t: n for t, n in state.failures.items() if t in group.tasks}
    failures[task] = failures.get(task, 0) + 1
    times = sum(failures.values())
    if times <= limit and cause.exit_code != INPUT_ERROR:
        delay_s = state.restarts.delay_s(times)
        stopping = _names(state.group_alive, "stopping ") + (" and " if state.group_alive else "")
        text = f"{task} failed ({cause.reason}); {stopping}restarting the job in {delay_s:g} s ({times} of {limit})"
        return _stop_group(state, GroupRestart(group=group, at_s=now + delay_s, cause=cause), failures, [text], now)
    worst = most_to_blame(failures, task)
    smaller = group.without(worst)
    if smaller is None:
        return _fail(state, task, cause, now)
    text = f"{task} failed ({cause.reason})" + _names(state.group_alive, "; stopping ")
    how_often = _times(times) if failures[worst] == times else f"{failures[worst]} of the last {times} times"
    workers = "1 worker" if smaller.workers == 1 else f"{smaller.workers} workers"
    required = f"at least {group.min_workers} {'is' if group.min_workers == 1 else 'are'} required"
    without = f"{worst} failed {how_often}; continuing without it on {workers} ({required})"
    restart = GroupRestart(group=smaller, at_s=now + state.restarts.delay_s(1), cause=cause)
    return _stop_group(state, restart, {}, [text, without], now)


def _stop_group(
    state: Supervision, restart: GroupRestart, failures: Mapping[Task, int], texts: list[str], now: float
) -> Transition:
    """Stops the running tasks of the worker group, so that it can restart."""
    rest = state.group_alive
    others = {task: n for task, n in state.failures.items() if state.group is None or task not in state.group.tasks}
    state = replace(
        state,
        group_restart=restart,
        failures={**others, **failures},
        suspects=(),
        phase=Phase.STOPPING_GROUP if rest else Phase.RUNNING,
        deadline=now + state.grace.stop_s if rest else None,
    )
    return state, [*map(Say, texts), *_send_all(rest, signal.SIGTERM)]


def _interrupted(state: Supervision, number: int, now: float) -> Transition:
    if state.outcome is not None or state.phase is Phase.KILLING:
        return state, []
    name = signal.Signals(number).name
    if state.phase is Phase.STOPPING:
        if state.deadline is not None and now < state.deadline - state.grace.stop_s + ECHO_S:
            return state, []
        return _kill(state, f"received {name} again; killing" + _names(state.alive, " "), now)
    outcome = Outcome(kind="interrupted", exit_code=128 + number, reason=name)
    return _stop(replace(state, verdict=outcome), f"received {name}; stopping" + _names(state.alive, " "), now)


def _closed(state: Supervision, now: float) -> Transition:
    if state.outcome is not None or state.phase in (Phase.STOPPING, Phase.KILLING):
        return state, []
    outcome = Outcome(kind="interrupted", exit_code=128 + signal.SIGTERM, reason="stopped by the launcher")
    return _stop(replace(state, verdict=outcome), "", now)


def _deadline_passed(state: Supervision, now: float) -> Transition:
    grace = state.grace
    if state.phase is Phase.DIAGNOSING and state.group is not None:
        return _diagnose(state, state.group, now)
    if state.group_restart is not None:
        return _group_did_not_exit(state, state.group_restart, now)
    if state.phase is Phase.ENDING:
        text = f" did not exit within {grace.ps_s:g} s after the workers; sent SIGTERM"
        return _stop(state, _names(state.alive) + text, now)
    if state.phase is Phase.STOPPING:
        text = f" did not exit within {grace.stop_s:g} s after SIGTERM; sent SIGKILL"
        told = [task for task in state.alive if task.job != "ps"]  # the ps are told once these have exited
        return _kill(state, _names(told or state.alive) + text, now)
    text = f" did not exit within {grace.kill_s:g} s after SIGKILL; giving up"
    return replace(state, alive=frozenset()), [Say(_names(state.alive) + text)]


def _group_did_not_exit(state: Supervision, restart: GroupRestart, now: float) -> Transition:
    grace, rest = state.grace, state.group_alive
    if state.phase is Phase.STOPPING_GROUP:
        text = f" did not exit within {grace.stop_s:g} s after SIGTERM; sent SIGKILL"
        state = replace(state, phase=Phase.KILLING_GROUP, deadline=now + grace.kill_s)
        return state, [Say(_names(rest) + text), *_send_all(rest, signal.SIGKILL)]
    # It may hold its GPU or its files forever, so a second process beside it could not work.
    text = f" did not exit within {grace.kill_s:g} s after SIGKILL; the job cannot restart"
    state = replace(state, alive=state.alive - rest, verdict=restart.cause)
    return _stop(state, _names(rest) + text, now)


def _stop(state: Supervision, text: str, now: float) -> Transition:
    deadline = now + state.grace.stop_s
    state = replace(state, phase=Phase.STOPPING, deadline=deadline, restart_at={}, group_restart=None, suspects=())
    first = [task for task in state.alive if task.job != "ps"]
    return state, [*map(Say, [text] if text else []), *_send_all(first or state.alive, signal.SIGTERM)]


def _kill(state: Supervision, text: str, now: float) -> Transition:
    state = replace(state, phase=Phase.KILLING, deadline=now + state.grace.kill_s)
    return state, [Say(text), *_send_all(state.alive, signal.SIGKILL)]


def _send_all(tasks: Iterable[Task], number: int) -> list[Instruction]:
    return [Send(task, number) for task in _in_order(tasks)]


def _names(tasks: Iterable[Task], before: str = "") -> str:
    """Returns the names of the tasks after a prefix; empty if there are no tasks."""
    names = ", ".join(map(str, _in_order(tasks)))
    return before + names if names else ""


def _times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def _only_ps(tasks: Iterable[Task]) -> bool:
    return all(task.job == "ps" for task in tasks)


def _in_order(tasks: Iterable[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: (task.job, task.index))
