"""Tasks that only train together: what their exits mean, without processes and without a clock."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainband.cluster.task import Task
from trainband.cluster.worker_group import (
    CAUSE_WAIT_S,
    LOST_A_PEER,
    SIMULTANEOUS_S,
    WorkerGroup,
    first_to_fail,
    most_to_blame,
)
from trainband.launch.events import (
    Closed,
    Event,
    Exited,
    Instruction,
    Interrupted,
    Outcome,
    Restart,
    Restarted,
    RestartGroup,
    Say,
    Send,
    Tick,
)
from trainband.launch.options import (
    Grace,
    Restarts,
)
from trainband.launch.supervision import (
    Phase,
    Supervision,
    advance,
)

CHIEF, EVALUATOR = Task("chief", 0), Task("evaluator", 0)
WORKERS = [Task("worker", index) for index in range(3)]
W0, W1, W2 = WORKERS
KILLED, TERMINATED, ABORTED = -signal.SIGKILL, -signal.SIGTERM, -signal.SIGABRT
GRACE = Grace(ps_s=10.0, stop_s=5.0, kill_s=3.0)
ALL = frozenset(WORKERS)


def _job(*tasks: Task, restarts: int = 2, min_workers: int | None = None) -> Supervision:
    alive = frozenset(tasks)
    trainers = frozenset(task for task in tasks if task.trains)
    least = sum(task.job == "worker" for task in tasks) if min_workers is None else min_workers
    return Supervision(
        alive=alive,
        grace=GRACE,
        restarts=Restarts(limit=restarts, first_delay_s=1.0, settled_s=60.0),
        group=WorkerGroup(tasks=trainers, min_workers=least),
    )


def _drive(state: Supervision, *events: tuple[float, Event]) -> tuple[Supervision, list[Instruction]]:
    """The state after events at times, and what the last of them asked for."""
    instructions: list[Instruction] = []
    for now, event in events:
        state, instructions = advance(state, event, now)
    return state, instructions


def _fail(state: Supervision, task: Task, status: int, now: float) -> tuple[Supervision, list[Instruction], float]:
    """A failure, the end of the others and, where they start again, their start. Gives all that was asked for."""
    asked: list[Instruction] = []
    state, todo = advance(state, Exited(task, status), now)
    asked += todo
    while (
        state.outcome is None
        and (state.alive or state.group_restart)
        and not any(isinstance(i, RestartGroup) for i in asked)
    ):
        for sent in [i for i in todo if isinstance(i, Send)]:
            state, more = advance(state, Exited(sent.task, TERMINATED), now)
            asked += more
        if state.outcome is not None or state.next_s is None:
            break
        now = state.next_s
        state, todo = advance(state, Tick(), now)
        asked += todo
    for instruction in asked:
        if isinstance(instruction, RestartGroup):
            for mate in instruction.tasks:
                state, _ = advance(state, Restarted(mate), now)
    return state, asked, now


def _said(asked: list[Instruction]) -> list[str]:
    return [instruction.text for instruction in asked if isinstance(instruction, Say)]


def test_a_failure_ends_all_and_all_start_again() -> None:
    state, todo = _drive(_job(W0, W1), (10, Exited(W1, KILLED)))
    assert todo == [
        Say("worker:1 failed (killed by SIGKILL); stopping worker:0 and restarting the job in 1 s (1 of 2)"),
        Send(W0, signal.SIGTERM),
    ]
    assert (state.phase, state.next_s, state.outcome) == (Phase.STOPPING_GROUP, 15, None)
    # The survivor's own failure says nothing and counts for nothing.
    state, todo = _drive(state, (10.1, Exited(W0, 1)))
    assert (todo, state.phase, state.next_s, state.outcome) == ([], Phase.RUNNING, 11, None)
    assert _drive(state, (10.9, Tick()))[1] == []
    state, todo = _drive(state, (11, Tick()))
    assert todo == [RestartGroup((W0, W1))]
    assert (state.alive, state.next_s) == (frozenset({W0, W1}), None)
    state, todo = _drive(state, (11, Restarted(W0)), (11, Restarted(W1)), (20, Exited(W0, 0)), (21, Exited(W1, 0)))
    assert (state.outcome, todo) == (Outcome(kind="succeeded", exit_code=0), [])


def test_those_that_have_ended_well_start_again_too() -> None:
    state, todo = _drive(_job(W0, W1, W2), (1, Exited(W0, 0)), (2, Exited(W2, 0)), (3, Exited(W1, 1)))
    assert todo == [Say("worker:1 failed (exit code 1); restarting the job in 1 s (1 of 2)")]
    assert _drive(state, (4, Tick()))[1] == [RestartGroup((W0, W1, W2))]


# What happens when, in tenths of an instant -> the cause
CAUSES: list[tuple[list[tuple[float, Task, int]], Task]] = [
    ([(0, W1, 1)], W1),
    ([(0, W1, 1), (5, W0, 1)], W1),
    # the system told of a survivor's end first
    ([(0, W1, 1), (5, W0, KILLED)], W0),
    ([(0, W1, 1), (3, W2, 1), (5, W0, -signal.SIGSEGV)], W0),
    # JAX aborts a process whose peer has gone
    ([(0, W1, 1), (1, W0, ABORTED)], W1),
    ([(0, W1, ABORTED), (1, W0, 1)], W1),
    ([(0, W1, ABORTED), (1, W0, KILLED)], W0),
    # a survivor that says so is none, and the cause is waited for longer
    ([(0, W1, LOST_A_PEER), (5, W0, 1)], W0),
    ([(0, W1, LOST_A_PEER), (5, W2, LOST_A_PEER), (60, W0, 1)], W0),
    # one that all others have lost, and that does not end itself
    ([(0, W1, LOST_A_PEER), (5, W2, LOST_A_PEER)], W0),
    ([(0, W2, LOST_A_PEER), (5, W1, 0)], W2),
    ([(0, W2, LOST_A_PEER)], W2),
    ([(0, W1, LOST_A_PEER), (5, W2, LOST_A_PEER), (6, W0, LOST_A_PEER)], W1),
    ([(0, W1, LOST_A_PEER), (5, W0, 1), (9, W2, KILLED)], W2),
    # one that ends well in the same instant has nothing to do with it
    ([(0, W0, 0), (0, W1, 3), (1, W2, 0)], W1),
]


@pytest.mark.parametrize(("exits", "cause"), CAUSES)
def test_the_first_that_failed_is_the_cause(exits: list[tuple[float, Task, int]], cause: Task) -> None:
    state, asked = _job(W0, W1, W2), []
    for tenths, task, status in exits:
        state, todo = advance(state, Exited(task, status), tenths * SIMULTANEOUS_S / 10)
        asked += todo
    if state.phase is Phase.DIAGNOSING:
        assert not asked
        assert state.next_s is not None
        assert state.next_s <= (CAUSE_WAIT_S if exits[0][2] == LOST_A_PEER else SIMULTANEOUS_S)
        state, todo = advance(state, Tick(), state.next_s)
        asked += todo
    assert [text.split()[0] for text in _said(asked)] == [str(cause)]
    assert {i.task for i in asked if isinstance(i, Send)} == ALL - {task for _, task, _ in exits}


def test_a_task_that_is_killed_after_the_instant_is_a_survivor() -> None:
    state, _ = _drive(_job(W0, W1), (0, Exited(W1, 1)), (SIMULTANEOUS_S, Tick()), (SIMULTANEOUS_S, Exited(W0, KILLED)))
    assert state.group_restart is not None
    assert state.group_restart.cause.failed == W1


def test_failures_count_for_the_job_and_each_start_comes_later() -> None:
    state, asked, now = _fail(_job(W0, W1, W2), W1, 1, 0)
    assert _said(asked) == [
        "worker:1 failed (exit code 1); stopping worker:0, worker:2 and restarting the job in 1 s (1 of 2)"
    ]
    state, asked, now = _fail(state, W2, 7, now + 5)
    assert _said(asked) == [
        "worker:2 failed (exit code 7); stopping worker:0, worker:1 and restarting the job in 2 s (2 of 2)"
    ]
    state, asked, now = _fail(state, W0, KILLED, now + 5)
    assert _said(asked) == ["worker:0 failed (killed by SIGKILL); stopping the others: worker:1, worker:2"]
    assert state.outcome == Outcome(kind="failed", exit_code=137, failed=W0, reason="killed by SIGKILL")


def test_a_job_that_has_run_for_long_has_its_failures_forgotten() -> None:
    state, _, now = _fail(_job(W0, W1), W1, 1, 0)
    state, _, now = _fail(state, W0, 1, now + 59)
    state, asked, _ = _fail(state, W1, 1, now + 60)
    assert _said(asked)[0].endswith("restarting the job in 1 s (1 of 2)")


def test_without_restarts_a_failure_ends_the_job() -> None:
    state, todo = _drive(_job(W0, W1, EVALUATOR, restarts=0), (0, Exited(W1, 1)))
    assert todo == []
    # Nobody is left who could have been the cause.
    state, todo = _drive(state, (SIMULTANEOUS_S / 2, Exited(W0, 0)))
    assert todo == [
        Say("worker:1 failed (exit code 1); stopping the others: evaluator:0"),
        Send(EVALUATOR, signal.SIGTERM),
    ]
    state, _ = _drive(state, (1, Exited(EVALUATOR, 0)))
    assert state.outcome == Outcome(kind="failed", exit_code=1, failed=W1, reason="exit code 1")


def test_who_does_not_end_is_killed_first() -> None:
    state, todo = _drive(_job(W0, W1, W2), (0, Exited(W1, KILLED)), (1, Exited(W0, 1)), (4.9, Tick()))
    assert (todo, state.next_s) == ([], 5)
    state, todo = _drive(state, (5, Tick()))
    assert todo == [Say("worker:2 did not exit within 5 s after SIGTERM; sent SIGKILL"), Send(W2, signal.SIGKILL)]
    ended, todo = _drive(state, (6, Exited(W2, KILLED)), (6, Tick()))
    assert (todo, ended.phase, ended.deadline) == ([RestartGroup((W0, W1, W2))], Phase.RUNNING, None)


def test_who_is_stuck_is_killed_at_once() -> None:
    state, todo = _drive(_job(W0, W1, W2), (0, Exited(W0, LOST_A_PEER)), (0.1, Exited(W2, LOST_A_PEER)))
    assert (todo, state.next_s) == ([], CAUSE_WAIT_S)
    state, todo = _drive(state, (CAUSE_WAIT_S, Tick()))
    why = "worker:1 failed (it is stuck: all its peers have lost it); stopping worker:1 and restarting the job in 1 s"
    assert todo == [Say(f"{why} (1 of 2)"), Send(W1, signal.SIGTERM), Send(W1, signal.SIGKILL)]


def test_who_does_not_end_even_then_fails_the_job() -> None:
    state, _ = _drive(_job(W0, W1, EVALUATOR), (0, Exited(W1, KILLED)), (5, Tick()))
    state, todo = _drive(state, (8, Tick()))
    assert todo == [
        Say("worker:0 did not exit within 3 s after SIGKILL; the job cannot restart"),
        Send(EVALUATOR, signal.SIGTERM),
    ]
    state, _ = _drive(state, (8, Exited(EVALUATOR, 0)))
    assert state.outcome is not None
    assert state.outcome.failed == W1


def test_an_evaluator_lives_on_and_is_restarted_alone() -> None:
    state, todo = _drive(_job(W0, W1, EVALUATOR), (0, Exited(W1, KILLED)))
    assert [i.task for i in todo if isinstance(i, Send)] == [W0]
    state, todo = _drive(state, (0.5, Exited(EVALUATOR, 1)))
    assert todo == [Say("evaluator:0 failed (exit code 1); restarting it in 1 s (1 of 2)")]
    # The one start waits for no other.
    assert _drive(state, (1.5, Tick()))[1] == [Restart(EVALUATOR)]
    state, todo = _drive(state, (0.6, Exited(W0, 1)), (1, Tick()))
    assert (todo, state.next_s) == ([RestartGroup((W0, W1))], 1.5)
    state, todo = _drive(state, (1.5, Tick()))
    assert todo == [Restart(EVALUATOR)]
    assert state.alive == {W0, W1, EVALUATOR}


@pytest.mark.parametrize(
    "events",
    [
        [],
        [(0.1, Exited(W1, 1))],  # in the instant of the failure
        [(0.1, Exited(W1, KILLED))],  # while the other ends
        [(0.1, Exited(W1, KILLED)), (5.1, Tick())],  # while it is killed
        [(0.1, Exited(W1, KILLED)), (0.2, Exited(W0, 1))],  # in the pause
    ],
)
def test_a_signal_ends_it_at_any_time(events: list[tuple[float, Event]]) -> None:
    state, _ = _drive(_job(W0, W1), *events)
    running = state.alive
    state, todo = _drive(state, (5.5, Interrupted(signal.SIGINT)))
    assert todo[1:] == [Send(task, signal.SIGTERM) for task in (W0, W1) if task in running]
    for task in running:
        state, _ = _drive(state, (6, Exited(task, TERMINATED)))
    assert state.outcome == Outcome(kind="interrupted", exit_code=130, reason="SIGINT")


def test_a_task_that_fails_too_often_is_left_out() -> None:
    state, now = _job(W0, W1, W2, min_workers=2), 0.0
    for _ in range(2):
        state, _, now = _fail(state, W1, 1, now + 1)
    state, asked, now = _fail(state, W1, 1, now + 1)
    assert _said(asked) == [
        "worker:1 failed (exit code 1); stopping worker:0, worker:2",
        "worker:1 failed 3 times; continuing without it on 2 workers (at least 2 are required)",
    ]
    assert asked[-1] == RestartGroup((W0, W1))
    assert state.alive == {W0, W1}
    # The smaller job has failed never yet, and has nobody to spare.
    for n in (1, 2):
        state, asked, now = _fail(state, W0, 1, now + 1)
        assert _said(asked)[0].endswith(f"({n} of 2)")
    state, asked, now = _fail(state, W0, 1, now + 1)
    assert _said(asked) == ["worker:0 failed (exit code 1); stopping the others: worker:1"]
    assert state.outcome is not None


@pytest.mark.parametrize(
    ("restarts", "failures", "words"),
    [
        (0, [W2], "worker:2 failed once; continuing without it on 2 workers (at least 1 is required)"),
        (1, [W2, W2], "worker:2 failed twice; continuing without it on 2 workers (at least 1 is required)"),
        # the one that failed most often, though another did so last
        (
            2,
            [W2, W2, W0],
            "worker:2 failed 2 of the last 3 times; continuing without it on 2 workers (at least 1 is required)",
        ),
        (
            1,
            [W2, W0],
            "worker:0 failed 1 of the last 2 times; continuing without it on 2 workers (at least 1 is required)",
        ),
    ],
)
def test_who_is_left_out(restarts: int, failures: list[Task], words: str) -> None:
    state, now, asked = _job(W0, W1, W2, restarts=restarts, min_workers=1), 0.0, list[Instruction]()
    for task in failures:
        state, asked, now = _fail(state, task, 1, now + 1)
    assert _said(asked)[-1] == words


def test_one_worker_is_left_in_the_end() -> None:
    state, now = _job(W0, W1, W2, restarts=0, min_workers=1), 0.0
    state, _, now = _fail(state, W0, 1, now)
    state, asked, now = _fail(state, W1, 1, now)
    assert _said(asked)[-1] == "worker:1 failed once; continuing without it on 1 worker (at least 1 is required)"
    state, asked, now = _fail(state, W0, 1, now)
    assert _said(asked) == ["worker:0 failed (exit code 1)"]
    assert state.outcome is not None


def test_a_chief_is_never_left_out() -> None:
    job = _job(CHIEF, W0, W1, restarts=0, min_workers=1)
    state, asked, _ = _fail(job, CHIEF, 1, 0)
    assert state.outcome is not None
    _, asked, _ = _fail(job, W0, 1, 0)
    assert asked[-1] == RestartGroup((CHIEF, W0))


def test_the_rules_by_themselves() -> None:
    assert first_to_fail([(W1, 1), (W0, ABORTED), (W2, KILLED)]) == (W2, KILLED)
    assert most_to_blame({W0: 1, W1: 2}, W0) == W1
    assert most_to_blame({W0: 1, W1: 1}, W0) == W0
    assert WorkerGroup(tasks=ALL, min_workers=2).without(W0) == WorkerGroup(tasks=frozenset({W0, W1}), min_workers=2)
    assert WorkerGroup(tasks=ALL, min_workers=3).without(W0) is None


_EVENTS = st.one_of(
    st.builds(
        Exited,
        st.sampled_from([*WORKERS, EVALUATOR]),
        st.sampled_from([0, 1, 1, LOST_A_PEER, KILLED, ABORTED, TERMINATED]),
    ),
    st.builds(Interrupted, st.just(int(signal.SIGINT))),
    *[st.just(Tick())] * 3,
)


@given(st.lists(st.tuples(st.floats(0, 4), _EVENTS), max_size=30), st.integers(0, 2), st.integers(1, 3))
def test_whatever_happens_it_can_be_ended_and_nobody_is_there_twice(
    steps: list[tuple[float, Event]], restarts: int, min_workers: int
) -> None:
    state, now = _job(*WORKERS, EVALUATOR, restarts=restarts, min_workers=min_workers), 0.0
    for pause, event in steps:
        now += pause
        before = state
        state, todo = advance(state, event, now)
        for instruction in todo:
            match instruction:
                case Send(task):
                    assert task in state.alive
                case Restart(task):
                    assert task not in before.alive
                    state, _ = advance(state, Restarted(task), now)
                case RestartGroup(tasks):
                    assert not before.group_alive
                    assert min_workers <= len(tasks) <= len(before.group.tasks if before.group else ())
                    for task in tasks:
                        state, _ = advance(state, Restarted(task), now)
        # Once all is done that was due by now, the next time is one to come, so that nobody turns in circles.
        if isinstance(event, Tick) and state.outcome is None and state.next_s is not None and state == before:
            assert state.next_s > now
        if state.outcome is None and not state.alive:
            assert state.next_s is not None, "nothing runs, and nothing would ever start it"
    state, _ = advance(state, Closed(), now)
    for _ in range(3):
        now += 20
        state, _ = advance(state, Tick(), now)
    assert replace(state, verdict=None).outcome is not None
