"""What the exits of a job's tasks mean, as a pure state machine: events in, instructions out.

It has no processes, clocks or signals: `launch.LocalCluster` is the thin shell around it.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from trainband.cluster.task import Task
from trainband.launch.worker_group import WorkerGroup, cause_wait_s, first_to_fail, most_to_blame, stuck_task


@dataclass(frozen=True, kw_only=True, slots=True)
class Grace:
    """How long to wait for tasks to end, in seconds."""

    ps_s: float = 10.0
    """For the ps to end by themselves once every worker has ended well."""
    stop_s: float = 20.0
    """Between SIGTERM and SIGKILL: for the step under way, and for the last checkpoint."""
    kill_s: float = 5.0
    """After SIGKILL, until a process that the kernel cannot end is given up."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"Grace.{name} must be > 0 seconds, got {value}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Restarts:
    """How often a task that failed is started again."""

    most: int = 0
    """For each task, or for all of a group together, since it last ran for `settled_s`."""
    first_s: float = 1.0
    """Before the first time; twice as long before each further one."""
    longest_s: float = 30.0
    settled_s: float = 60.0
    """How long a task must have run for its failures before to be forgotten."""

    def __post_init__(self) -> None:
        if self.most < 0:
            raise ValueError(f"Restarts.most must be 0 or more, got {self.most}.")
        for name in ("first_s", "longest_s", "settled_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Restarts.{name} must be > 0 seconds, got {getattr(self, name)}.")

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return min(self.longest_s, self.first_s * 2.0 ** (failures - 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a job ended.

    Attributes:
      kind: `succeeded`, `failed` (a task did) or `interrupted` (a signal to the launcher).
      exit_code: what the launcher exits with: 0, the failed task's own code, or 128 + the signal's number.
      failed: the first task that failed.
      reason: how, in words.
    """

    kind: Literal["succeeded", "failed", "interrupted"]
    exit_code: int
    failed: Task | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Exited:
    """A task has ended.

    Attributes:
      status: its exit code, or minus the number of the signal that ended it.
    """

    task: Task
    status: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The launcher got a signal: SIGINT, SIGTERM or SIGHUP."""

    signal_number: int


@dataclass(frozen=True, slots=True)
class Left:
    """The caller has left the job to be ended, without a signal."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Began:
    """A task that was to be started again runs."""

    task: Task


Event: TypeAlias = Exited | Interrupted | Left | Tick | Began


@dataclass(frozen=True, slots=True)
class Send:
    """Instruction: send a signal to a task and all the processes that it has started."""

    task: Task
    signal_number: int


@dataclass(frozen=True, slots=True)
class Start:
    """Instruction: start a task again; `Began` says that it runs."""

    task: Task


@dataclass(frozen=True, slots=True)
class StartGroup:
    """Instruction: start all the tasks that train again, at addresses of their own, and no others in their place.

    `Began` says of each that it runs.
    """

    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Say:
    """Instruction: tell the user."""

    text: str


Instruction: TypeAlias = Send | Start | StartGroup | Say


ECHO_S = 0.5
"""Seconds within which a second signal counts as the first one's echo: a terminal that closes signals both the
shell, which passes it on, and us; and wrappers pass on a Ctrl-C that we got from the terminal ourselves."""


class Phase(enum.Enum):
    """How far the job is."""

    RUNNING = enum.auto()
    DIAGNOSING = enum.auto()
    """A task of the group has failed; what fails within the same instant may be the cause."""
    STOPPING_GROUP = enum.auto()
    """The group is to start again; those of it that still run have got SIGTERM."""
    KILLING_GROUP = enum.auto()
    """They have got SIGKILL."""
    ENDING = enum.auto()
    """Every worker has ended well; the ps have their grace."""
    STOPPING = enum.auto()
    """All but the ps have got SIGTERM, and these when the others are gone: the chief may still save."""
    KILLING = enum.auto()
    """All have got SIGKILL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRestart:
    """A group that is to be started again.

    Attributes:
      group: who is in it then.
      at_s: when, at the earliest and not before all of the group that was have ended; in seconds of the caller's clock.
      cause: the failure, should they not end.
    """

    group: WorkerGroup
    at_s: float
    cause: Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Supervision:
    """The state of a job.

    Attributes:
      alive: the tasks that run.
      grace: how long each phase may last.
      phase: how far it is.
      deadline: when the phase ends, in seconds of the caller's clock; `None` while training runs.
      verdict: what the outcome will be, once that is known.
      restarts: how often a task is started again.
      group: the tasks that are started again together; `None` where each is by itself.
      again: that the group is to be started again; `None` while it runs.
      suspects: the failures in the group within this instant, as they were seen.
      failures: of each task, how often in a row it has failed; in a group, how often it was the cause.
      began: when each task that was started again began.
      due: the tasks that are to be started again, and when.
    """

    alive: frozenset[Task]
    grace: Grace = Grace()
    restarts: Restarts = Restarts()
    group: WorkerGroup | None = None
    group_restart: GroupRestart | None = None
    suspects: tuple[tuple[Task, int], ...] = ()
    failures: Mapping[Task, int] = field(default_factory=dict)
    began: Mapping[Task, float] = field(default_factory=dict)
    due: Mapping[Task, float] = field(default_factory=dict)
    phase: Phase = Phase.RUNNING
    deadline: float | None = None
    verdict: Outcome | None = None

    @property
    def next_s(self) -> float | None:
        """When a `Tick` is wanted at the latest, in seconds of the caller's clock."""
        times = [*self.due.values(), *([] if self.deadline is None else [self.deadline])]
        if self.group_restart is not None and not self.group_alive:
            times.append(self.group_restart.at_s)
        return min(times, default=None)

    @property
    def group_alive(self) -> frozenset[Task]:
        """Those of the group that run."""
        return frozenset() if self.group is None else self.alive & self.group.tasks

    @property
    def outcome(self) -> Outcome | None:
        """How the job ended; `None` while a task is alive, or to be started again."""
        if self.alive or self.due or self.group_restart is not None:
            return None
        return self.verdict or Outcome(kind="succeeded", exit_code=0)


def advance(state: Supervision, event: Event, now: float) -> tuple[Supervision, list[Instruction]]:
    """The state after an event, and what to do.

    Args:
      now: seconds of the clock that `Supervision.deadline` counts in.

    The job succeeds when every worker, the chief and the evaluator have exited with 0 and then the ps have, too. A ps
    that does not end by itself is stopped and mentioned, but fails nothing. A task that exits otherwise before it was
    told to stop is started again, as often as `Restarts` lets it; then it fails the job, and all the others get
    SIGTERM, and SIGKILL when that does not help. An evaluator stops nobody by its failure, but the job counts as
    failed at its end. Of a group, all are started again when one fails, those too that have ended well; when that does
    not help, without the one that failed, as long as enough remain. A signal to the launcher interrupts the job; a
    second one that is no echo of the first kills.
    """
    match event:
        case Exited(task, status):
            return _exited(state, task, status, now)
        case Interrupted(number):
            return _interrupted(state, number, now)
        case Left():
            return _left(state, now)
        case Tick() if state.alive and state.deadline is not None and now >= state.deadline:
            return _deadline_passed(state, now)
        case Tick():
            return _start_what_is_due(state, now)
        case Began(task):
            return replace(state, began={**state.began, task: now}), []


def describe_status(status: int) -> str:
    """An exit status in words: `exit code 3`, or `killed by SIGSEGV`."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _start_what_is_due(state: Supervision, now: float) -> tuple[Supervision, list[Instruction]]:
    ready = [task for task, at in state.due.items() if now >= at]
    due = {task: at for task, at in state.due.items() if task not in ready}
    state = replace(state, due=due, alive=state.alive | set(ready))
    todo: list[Instruction] = [Start(task) for task in ready]
    again = state.group_restart
    if again is not None and not state.group_alive and now >= again.at_s:
        tasks = again.group.tasks
        state = replace(state, group=again.group, group_restart=None, alive=state.alive | tasks)
        todo.append(StartGroup(tuple(_in_order(tasks))))
    return state, todo


def _exited(state: Supervision, task: Task, status: int, now: float) -> tuple[Supervision, list[Instruction]]:
    if task not in state.alive:
        return state, []
    state = replace(state, alive=state.alive - {task})
    if state.phase is Phase.STOPPING and task.job != "ps" and state.alive and _only_ps(state.alive):
        return state, list(_send_all(state.alive, signal.SIGTERM))
    if state.phase in (Phase.STOPPING, Phase.KILLING):
        return state, []
    if state.group is not None and task in state.group.tasks and (status != 0 or state.phase is not Phase.RUNNING):
        return _exited_from_group(state, state.group, task, status, now)
    if status != 0:
        outcome = _failure(task, status)
        failures = _failures(state, task, now)
        if failures <= state.restarts.most:
            return _start_again(state, task, outcome.reason, failures, now)
        state = replace(state, verdict=outcome)
        if task.job != "evaluator":
            text = f"{task} failed ({outcome.reason})" + _others(state.alive, "; stopping the others: ")
            return _stop(state, text, now)
        say = [Say(f"{task} failed ({outcome.reason})" + (", the training goes on" if state.alive else ""))]
    else:
        say = []
    remaining = state.alive | set(state.due)
    if state.phase is Phase.RUNNING and remaining and _only_ps(remaining):
        return replace(state, phase=Phase.ENDING, deadline=now + state.grace.ps_s), list(say)
    return state, list(say)


def _failure(task: Task, status: int) -> Outcome:
    code = status if status > 0 else 128 - status
    return Outcome(kind="failed", exit_code=code, failed=task, reason=describe_status(status))


def _failures(state: Supervision, task: Task, now: float) -> int:
    """How often in a row this task has failed, with this time."""
    return 1 if _has_settled(state, task, now) else state.failures.get(task, 0) + 1


def _has_settled(state: Supervision, task: Task, now: float) -> bool:
    """Whether this task has run for so long that the failures before do not count."""
    began = state.began.get(task)
    return began is not None and now - began >= state.restarts.settled_s


def _start_again(
    state: Supervision, task: Task, reason: str, failures: int, now: float
) -> tuple[Supervision, list[Instruction]]:
    wait_s, most = state.restarts.wait_s(failures), state.restarts.most
    state = replace(state, failures={**state.failures, task: failures}, due={**state.due, task: now + wait_s})
    return state, [Say(f"{task} failed ({reason}); starting it again in {wait_s:g} s ({failures} of {most})")]


def _exited_from_group(
    state: Supervision, group: WorkerGroup, task: Task, status: int, now: float
) -> tuple[Supervision, list[Instruction]]:
    """A task of the group has failed, or it ended after another had failed."""
    if state.group_restart is not None:
        return state if state.group_alive else replace(state, phase=Phase.RUNNING, deadline=None), []
    if status != 0:
        state = replace(state, suspects=(*state.suspects, (task, status)))
    until = now + cause_wait_s(state.suspects)
    if until <= now or not state.group_alive:
        return _blame(state, group, now)
    deadline = until if state.deadline is None else min(until, state.deadline)
    return replace(state, phase=Phase.DIAGNOSING, deadline=deadline), []


def _blame(state: Supervision, group: WorkerGroup, now: float) -> tuple[Supervision, list[Instruction]]:
    """The instant of the failures is over: says whose it was, and what becomes of the group."""
    task, status = first_to_fail(state.suspects)
    stuck = stuck_task(state.suspects, state.group_alive, group.tasks)
    cause = _failure(task, status)
    if stuck is None:
        return _after_failure(state, group, task, cause, now)
    cause = replace(cause, failed=stuck, reason="it is stuck: all others have lost it")
    state, instructions = _after_failure(state, group, stuck, cause, now)
    return state, [*instructions, Send(stuck, signal.SIGKILL)]  # it has no ear for SIGTERM


def _after_failure(
    state: Supervision, group: WorkerGroup, task: Task, cause: Outcome, now: float
) -> tuple[Supervision, list[Instruction]]:
    most = state.restarts.most
    failures = {} if _has_settled(state, task, now) else {t: n for t, n in state.failures.items() if t in group.tasks}
    failures[task] = failures.get(task, 0) + 1
    times = sum(failures.values())
    if times <= most:
        wait_s = state.restarts.wait_s(times)
        ending = _others(state.group_alive, "ending ") + (" and " if state.group_alive else "")
        text = f"{task} failed ({cause.reason}); {ending}starting the job again in {wait_s:g} s ({times} of {most})"
        return _gather(state, GroupRestart(group=group, at_s=now + wait_s, cause=cause), failures, [Say(text)], now)
    worst = most_to_blame(failures, task)
    smaller = group.without(worst)
    if smaller is None:
        text = f"{task} failed ({cause.reason})" + _others(state.alive, "; stopping the others: ")
        return _stop(replace(state, verdict=cause), text, now)
    text = f"{task} failed ({cause.reason})" + _others(state.group_alive, "; ending ")
    how_often = _times(times) if failures[worst] == times else f"{failures[worst]} of the last {times} times"
    workers = "1 worker" if smaller.workers == 1 else f"{smaller.workers} workers"
    wanted = f"at least {group.min_workers} {'is' if group.min_workers == 1 else 'are'} wanted"
    without = f"{worst} failed {how_often}; going on without it, on {workers} ({wanted})"
    again = GroupRestart(group=smaller, at_s=now + state.restarts.wait_s(1), cause=cause)
    return _gather(state, again, {}, [Say(text), Say(without)], now)


def _gather(
    state: Supervision, again: GroupRestart, failures: Mapping[Task, int], says: list[Say], now: float
) -> tuple[Supervision, list[Instruction]]:
    """Ends what still runs of the group, so that it can start again."""
    rest = state.group_alive
    others = {task: n for task, n in state.failures.items() if state.group is None or task not in state.group.tasks}
    state = replace(
        state,
        group_restart=again,
        failures={**others, **failures},
        suspects=(),
        phase=Phase.STOPPING_GROUP if rest else Phase.RUNNING,
        deadline=now + state.grace.stop_s if rest else None,
    )
    return state, [*says, *_send_all(rest, signal.SIGTERM)]


def _times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def _interrupted(state: Supervision, number: int, now: float) -> tuple[Supervision, list[Instruction]]:
    if state.outcome is not None:
        return state, []
    name = signal.Signals(number).name
    if state.phase is Phase.KILLING:
        return state, []
    if state.phase is Phase.STOPPING:
        if state.deadline is not None and now < state.deadline - state.grace.stop_s + ECHO_S:
            return state, []
        return _kill(state, f"{name} again; killing" + _others(state.alive, " "), now)
    outcome = Outcome(kind="interrupted", exit_code=128 + number, reason=name)
    return _stop(replace(state, verdict=outcome), f"{name}; stopping" + _others(state.alive, " "), now)


def _left(state: Supervision, now: float) -> tuple[Supervision, list[Instruction]]:
    if state.outcome is not None or state.phase in (Phase.STOPPING, Phase.KILLING):
        return state, []
    outcome = Outcome(kind="interrupted", exit_code=128 + signal.SIGTERM, reason="ended by the launcher")
    state, instructions = _stop(replace(state, verdict=outcome), "", now)
    return state, [instruction for instruction in instructions if isinstance(instruction, Send)]


def _deadline_passed(state: Supervision, now: float) -> tuple[Supervision, list[Instruction]]:
    grace = state.grace
    if state.phase is Phase.DIAGNOSING and state.group is not None:
        return _blame(state, state.group, now)
    if state.group_restart is not None:
        return _not_gathered(state, state.group_restart, now)
    if state.phase is Phase.ENDING:
        text = f"did not end within {grace.ps_s:g} s after the workers; sent SIGTERM"
        return _stop(state, _others(state.alive, "") + " " + text, now)
    if state.phase is Phase.STOPPING:
        text = f" did not end within {grace.stop_s:g} s after SIGTERM; sent SIGKILL"
        told = [task for task in state.alive if task.job != "ps"]  # the ps too, once these are gone
        return _kill(state, _others(told or state.alive, "") + text, now)
    text = f" did not end within {grace.kill_s:g} s after SIGKILL; left to the kernel"
    return replace(state, alive=frozenset()), [Say(_others(state.alive, "") + text)]


def _not_gathered(state: Supervision, again: GroupRestart, now: float) -> tuple[Supervision, list[Instruction]]:
    """What still runs of the group does not end."""
    grace, rest = state.grace, state.group_alive
    if state.phase is Phase.STOPPING_GROUP:
        text = f" did not end within {grace.stop_s:g} s after SIGTERM; sent SIGKILL"
        state = replace(state, phase=Phase.KILLING_GROUP, deadline=now + grace.kill_s)
        return state, [Say(_others(rest, "") + text), *_send_all(rest, signal.SIGKILL)]
    # It may hold its card or its files for ever, so that to start it again beside itself would do no good.
    text = f" did not end within {grace.kill_s:g} s after SIGKILL; left to the kernel, the job cannot start again"
    state = replace(state, alive=state.alive - rest, verdict=again.cause)
    return _stop(state, _others(rest, "") + text, now)


def _stop(state: Supervision, text: str, now: float) -> tuple[Supervision, list[Instruction]]:
    state = replace(
        state, phase=Phase.STOPPING, deadline=now + state.grace.stop_s, due={}, group_restart=None, suspects=()
    )
    first = frozenset(task for task in state.alive if task.job != "ps")
    return state, [Say(text), *_send_all(first or state.alive, signal.SIGTERM)]


def _kill(state: Supervision, text: str, now: float) -> tuple[Supervision, list[Instruction]]:
    state = replace(state, phase=Phase.KILLING, deadline=now + state.grace.kill_s)
    return state, [Say(text), *_send_all(state.alive, signal.SIGKILL)]


def _send_all(tasks: Iterable[Task], number: int) -> list[Send]:
    return [Send(task, number) for task in _in_order(tasks)]


def _others(tasks: Iterable[Task], before: str) -> str:
    names = ", ".join(map(str, _in_order(tasks)))
    return before + names if names else ""


def _only_ps(tasks: Iterable[Task]) -> bool:
    return all(task.job == "ps" for task in tasks)


def _in_order(tasks: Iterable[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: (task.job, task.index))
