"""What the exits of a job's tasks mean, as a pure state machine: events in, instructions out.

It has no processes, clocks or signals: `launch.LocalCluster` is the thin shell around it.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from .task import Task
from .team import Team, first_to_fail, most_to_blame, that_is_stuck, wait_for_the_cause_s


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
    """For each task, or for all of a team together, since it last ran for `settled_s`."""
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
class StartTeam:
    """Instruction: start all the tasks that train again, at addresses of their own, and no others in their place.

    `Began` says of each that it runs.
    """

    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Say:
    """Instruction: tell the user."""

    text: str


Instruction: TypeAlias = Send | Start | StartTeam | Say


ECHO_S = 0.5
"""Seconds within which a second signal counts as the first one's echo: a terminal that closes signals both the
shell, which passes it on, and us; and wrappers pass on a Ctrl-C that we got from the terminal ourselves."""


class Phase(enum.Enum):
    """How far the job is."""

    RUNNING = enum.auto()
    BLAMING = enum.auto()
    """A task of the team has failed; what fails within the same instant may be the cause."""
    GATHERING = enum.auto()
    """The team is to start again; those of it that still run have got SIGTERM."""
    CLEARING = enum.auto()
    """They have got SIGKILL."""
    ENDING = enum.auto()
    """Every worker has ended well; the ps have their grace."""
    STOPPING = enum.auto()
    """All but the ps have got SIGTERM, and these when the others are gone: the chief may still save."""
    KILLING = enum.auto()
    """All have got SIGKILL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """A team that is to be started again.

    Attributes:
      team: who is in it then.
      at_s: when, at the earliest and not before all of the team that was have ended; in seconds of the caller's clock.
      cause: the failure, should they not end.
    """

    team: Team
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
      team: the tasks that are started again together; `None` where each is by itself.
      again: that the team is to be started again; `None` while it runs.
      suspects: the failures in the team within this instant, as they were seen.
      failures: of each task, how often in a row it has failed; in a team, how often it was the cause.
      began: when each task that was started again began.
      due: the tasks that are to be started again, and when.
    """

    alive: frozenset[Task]
    grace: Grace = Grace()
    restarts: Restarts = Restarts()
    team: Team | None = None
    again: Again | None = None
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
        if self.again is not None and not self.teammates:
            times.append(self.again.at_s)
        return min(times, default=None)

    @property
    def teammates(self) -> frozenset[Task]:
        """Those of the team that run."""
        return frozenset() if self.team is None else self.alive & self.team.tasks

    @property
    def outcome(self) -> Outcome | None:
        """How the job ended; `None` while a task is alive, or to be started again."""
        if self.alive or self.due or self.again is not None:
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
    failed at its end. Of a team, all are started again when one fails, those too that have ended well; when that does
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
    again = state.again
    if again is not None and not state.teammates and now >= again.at_s:
        tasks = again.team.tasks
        state = replace(state, team=again.team, again=None, alive=state.alive | tasks)
        todo.append(StartTeam(tuple(_in_order(tasks))))
    return state, todo


def _exited(state: Supervision, task: Task, status: int, now: float) -> tuple[Supervision, list[Instruction]]:
    if task not in state.alive:
        return state, []
    state = replace(state, alive=state.alive - {task})
    if state.phase is Phase.STOPPING and task.job != "ps" and state.alive and _only_ps(state.alive):
        return state, list(_send_all(state.alive, signal.SIGTERM))
    if state.phase in (Phase.STOPPING, Phase.KILLING):
        return state, []
    if state.team is not None and task in state.team.tasks and (status != 0 or state.phase is not Phase.RUNNING):
        return _exited_from_team(state, state.team, task, status, now)
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


def _exited_from_team(
    state: Supervision, team: Team, task: Task, status: int, now: float
) -> tuple[Supervision, list[Instruction]]:
    """A task of the team has failed, or it ended after another had failed."""
    if state.again is not None:
        return state if state.teammates else replace(state, phase=Phase.RUNNING, deadline=None), []
    if status != 0:
        state = replace(state, suspects=(*state.suspects, (task, status)))
    until = now + wait_for_the_cause_s(state.suspects)
    if until <= now or not state.teammates:
        return _blame(state, team, now)
    deadline = until if state.deadline is None else min(until, state.deadline)
    return replace(state, phase=Phase.BLAMING, deadline=deadline), []


def _blame(state: Supervision, team: Team, now: float) -> tuple[Supervision, list[Instruction]]:
    """The instant of the failures is over: says whose it was, and what becomes of the team."""
    task, status = first_to_fail(state.suspects)
    stuck = that_is_stuck(state.suspects, state.teammates, team.tasks)
    cause = _failure(task, status)
    if stuck is None:
        return _after_failure(state, team, task, cause, now)
    cause = replace(cause, failed=stuck, reason="it is stuck: all others have lost it")
    state, instructions = _after_failure(state, team, stuck, cause, now)
    return state, [*instructions, Send(stuck, signal.SIGKILL)]  # it has no ear for SIGTERM


def _after_failure(
    state: Supervision, team: Team, task: Task, cause: Outcome, now: float
) -> tuple[Supervision, list[Instruction]]:
    most = state.restarts.most
    failures = {} if _has_settled(state, task, now) else {t: n for t, n in state.failures.items() if t in team.tasks}
    failures[task] = failures.get(task, 0) + 1
    times = sum(failures.values())
    if times <= most:
        wait_s = state.restarts.wait_s(times)
        ending = _others(state.teammates, "ending ") + (" and " if state.teammates else "")
        text = f"{task} failed ({cause.reason}); {ending}starting the job again in {wait_s:g} s ({times} of {most})"
        return _gather(state, Again(team=team, at_s=now + wait_s, cause=cause), failures, [Say(text)], now)
    worst = most_to_blame(failures, task)
    smaller = team.without(worst)
    if smaller is None:
        text = f"{task} failed ({cause.reason})" + _others(state.alive, "; stopping the others: ")
        return _stop(replace(state, verdict=cause), text, now)
    text = f"{task} failed ({cause.reason})" + _others(state.teammates, "; ending ")
    how_often = _times(times) if failures[worst] == times else f"{failures[worst]} of the last {times} times"
    workers = "1 worker" if smaller.workers == 1 else f"{smaller.workers} workers"
    wanted = f"at least {team.fewest} {'is' if team.fewest == 1 else 'are'} wanted"
    without = f"{worst} failed {how_often}; going on without it, on {workers} ({wanted})"
    again = Again(team=smaller, at_s=now + state.restarts.wait_s(1), cause=cause)
    return _gather(state, again, {}, [Say(text), Say(without)], now)


def _gather(
    state: Supervision, again: Again, failures: Mapping[Task, int], says: list[Say], now: float
) -> tuple[Supervision, list[Instruction]]:
    """Ends what still runs of the team, so that it can start again."""
    rest = state.teammates
    others = {task: n for task, n in state.failures.items() if state.team is None or task not in state.team.tasks}
    state = replace(
        state,
        again=again,
        failures={**others, **failures},
        suspects=(),
        phase=Phase.GATHERING if rest else Phase.RUNNING,
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
    if state.phase is Phase.BLAMING and state.team is not None:
        return _blame(state, state.team, now)
    if state.again is not None:
        return _not_gathered(state, state.again, now)
    if state.phase is Phase.ENDING:
        text = f"did not end within {grace.ps_s:g} s after the workers; sent SIGTERM"
        return _stop(state, _others(state.alive, "") + " " + text, now)
    if state.phase is Phase.STOPPING:
        text = f" did not end within {grace.stop_s:g} s after SIGTERM; sent SIGKILL"
        told = [task for task in state.alive if task.job != "ps"]  # the ps too, once these are gone
        return _kill(state, _others(told or state.alive, "") + text, now)
    text = f" did not end within {grace.kill_s:g} s after SIGKILL; left to the kernel"
    return replace(state, alive=frozenset()), [Say(_others(state.alive, "") + text)]


def _not_gathered(state: Supervision, again: Again, now: float) -> tuple[Supervision, list[Instruction]]:
    """What still runs of the team does not end."""
    grace, rest = state.grace, state.teammates
    if state.phase is Phase.GATHERING:
        text = f" did not end within {grace.stop_s:g} s after SIGTERM; sent SIGKILL"
        state = replace(state, phase=Phase.CLEARING, deadline=now + grace.kill_s)
        return state, [Say(_others(rest, "") + text), *_send_all(rest, signal.SIGKILL)]
    # It may hold its card or its files for ever, so that to start it again beside itself would do no good.
    text = f" did not end within {grace.kill_s:g} s after SIGKILL; left to the kernel, the job cannot start again"
    state = replace(state, alive=state.alive - rest, verdict=again.cause)
    return _stop(state, _others(rest, "") + text, now)


def _stop(state: Supervision, text: str, now: float) -> tuple[Supervision, list[Instruction]]:
    state = replace(state, phase=Phase.STOPPING, deadline=now + state.grace.stop_s, due={}, again=None, suspects=())
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
