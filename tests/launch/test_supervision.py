"""What exits mean, without processes and without a clock."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainband.cluster.task import Task
from trainband.cluster.worker_group import WorkerGroup
from trainband.launch.events import (
    OUT_OF_MEMORY,
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
    describe_status,
)
from trainband.launch.options import (
    Grace,
    Restarts,
)
from trainband.launch.supervision import (
    ECHO_S,
    Phase,
    Supervision,
    advance,
)
from trainband.runtime.input_errors import INPUT_ERROR

PS, CHIEF, WORKER0, WORKER1 = Task("ps", 0), Task("chief", 0), Task("worker", 0), Task("worker", 1)
GRACE = Grace(ps_s=10.0, stop_s=5.0, kill_s=3.0)
JOB = Supervision(alive=frozenset({PS, WORKER0, WORKER1}), grace=GRACE)


def _drive(state: Supervision, *events: tuple[float, Event]) -> tuple[Supervision, list[Instruction]]:
    """The state after events at times, and what the last of them asked for."""
    instructions: list[Instruction] = []
    for now, event in events:
        state, instructions = advance(state, event, now)
    return state, instructions


def test_a_job_succeeds_when_the_workers_and_then_the_ps_exit_with_0() -> None:
    state, todo = _drive(JOB, (1, Exited(WORKER1, 0)), (2, Exited(WORKER0, 0)))
    assert (state.phase, state.deadline, state.outcome, todo) == (Phase.ENDING, 12.0, None, [])
    state, todo = _drive(state, (11.9, Tick()), (11.9, Exited(PS, 0)))
    assert (state.outcome, todo) == (Outcome(kind="succeeded", exit_code=0), [])


def test_a_ps_that_ends_before_the_workers_is_no_failure() -> None:
    state, _ = _drive(JOB, (1, Exited(PS, 0)), (2, Exited(WORKER1, 0)), (3, Exited(WORKER0, 0)))
    assert state.outcome == Outcome(kind="succeeded", exit_code=0)


def test_the_chief_counts_among_the_workers() -> None:
    state, _ = _drive(Supervision(alive=frozenset({PS, CHIEF, WORKER0})), (1, Exited(WORKER0, 0)))
    assert state.phase is Phase.RUNNING
    state, _ = _drive(state, (2, Exited(CHIEF, 0)))
    assert state.phase is Phase.ENDING


def test_a_ps_that_does_not_end_is_stopped_and_mentioned_but_fails_nothing() -> None:
    ending = ((1.0, Exited(WORKER0, 0)), (1.0, Exited(WORKER1, 0)))
    state, todo = _drive(JOB, *ending, (11.0, Tick()))
    assert todo == [Say("ps:0 did not exit within 10 s after the workers; sent SIGTERM"), Send(PS, signal.SIGTERM)]
    stubborn, todo = _drive(state, (15.9, Tick()), (16.0, Tick()))
    assert todo == [Say("ps:0 did not exit within 5 s after SIGTERM; sent SIGKILL"), Send(PS, signal.SIGKILL)]
    for stopped, status in ((state, -15), (stubborn, -9)):
        ended, todo = _drive(stopped, (17.0, Exited(PS, status)))
        assert (ended.outcome, todo) == (Outcome(kind="succeeded", exit_code=0), [])


@pytest.mark.parametrize(
    ("task", "status", "exit_code", "reason"),
    [
        (WORKER1, 3, 3, "exit code 3"),
        (WORKER1, -signal.SIGSEGV, 139, "killed by SIGSEGV"),
        (WORKER1, -signal.SIGTERM, 143, "killed by SIGTERM"),  # somebody else's, for we have sent none
        (PS, 1, 1, "exit code 1"),
    ],
)
def test_a_task_that_fails_fails_the_job(task: Task, status: int, exit_code: int, reason: str) -> None:
    state, todo = _drive(JOB, (1, Exited(task, status)))
    others = sorted(JOB.alive - {task}, key=str)
    assert todo == [
        Say(f"{task} failed ({reason}); stopping the others: {others[0]}, {others[1]}"),
        *(Send(other, signal.SIGTERM) for other in others if other != PS),
    ]
    assert state.outcome is None
    # How the others end, now that they were told to, does not matter.
    others.sort(key=lambda other: other == PS)
    state, todo = _drive(state, (2, Exited(others[0], 1)), (2, Exited(others[1], -15)))
    assert (state.outcome, todo) == (Outcome(kind="failed", exit_code=exit_code, failed=task, reason=reason), [])


def test_a_ps_that_crashes_at_the_end_fails_the_job() -> None:
    state, todo = _drive(JOB, (1, Exited(WORKER0, 0)), (1, Exited(WORKER1, 0)), (2, Exited(PS, 1)))
    assert state.outcome == Outcome(kind="failed", exit_code=1, failed=PS, reason="exit code 1")
    assert todo == [Say("ps:0 failed (exit code 1)")]


def test_tasks_that_do_not_end_are_killed_and_at_last_given_up() -> None:
    state, todo = _drive(JOB, (1, Exited(WORKER1, 1)), (5.9, Tick()))
    assert todo == []
    state, todo = _drive(state, (6.0, Tick()))
    assert todo[1:] == [Send(PS, signal.SIGKILL), Send(WORKER0, signal.SIGKILL)]
    state, todo = _drive(state, (7.0, Exited(PS, -9)), (9.0, Tick()))
    assert todo == [Say("worker:0 did not exit within 3 s after SIGKILL; giving up")]
    assert state.outcome is not None
    assert state.outcome.failed == WORKER1


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_launcher_ends_the_job(number: int, exit_code: int) -> None:
    state, todo = _drive(JOB, (1, Interrupted(number)))
    assert todo[1:] == [Send(task, signal.SIGTERM) for task in (WORKER0, WORKER1)]
    state, todo = _drive(state, (2.0, Exited(WORKER0, 1)), (2.5, Exited(WORKER1, 143)))
    assert todo == [Send(PS, signal.SIGTERM)], "the ps last, for the chief may save"
    state, _ = _drive(state, (3.0, Exited(PS, -signal.SIGTERM)))
    assert state.outcome is not None
    assert (state.outcome.kind, state.outcome.exit_code) == ("interrupted", exit_code)


def test_a_second_signal_kills_but_an_echo_of_the_first_does_not() -> None:
    state, todo = _drive(JOB, (1, Interrupted(signal.SIGINT)), (1 + ECHO_S / 2, Interrupted(signal.SIGINT)))
    assert (state.phase, todo) == (Phase.STOPPING, [])
    state, todo = _drive(state, (1 + ECHO_S, Interrupted(signal.SIGINT)))
    assert state.phase is Phase.KILLING
    assert todo[1:] == [Send(task, signal.SIGKILL) for task in (PS, WORKER0, WORKER1)]
    assert _drive(state, (3, Interrupted(signal.SIGINT))) == (state, [])


def test_leaving_the_job_ends_it_in_silence() -> None:
    state, todo = _drive(JOB, (1, Closed()))
    assert todo == [Send(task, signal.SIGTERM) for task in (WORKER0, WORKER1)]
    ended, _ = _drive(state, *((2.0, Exited(task, 0)) for task in JOB.alive))
    assert ended.outcome is not None
    assert ended.outcome.kind == "interrupted"
    assert _drive(ended, (3, Closed()), (3, Interrupted(2))) == (ended, [])


def test_a_status_in_words() -> None:
    assert describe_status(0) == "exit code 0"
    assert describe_status(-9) == "killed by SIGKILL"
    assert describe_status(-63) == "killed by signal 63"


def test_a_task_that_the_kernel_has_killed_for_want_of_memory_is_named_as_such() -> None:
    state, todo = _drive(JOB, (1, Exited(PS, OUT_OF_MEMORY)))
    assert isinstance(todo[0], Say)
    assert todo[0].text.startswith(
        "ps:0 failed (killed by the kernel: out of memory; use more ps, each of which holds less (--ps), or a machine"
    )
    assert state.verdict is not None
    assert (state.verdict.exit_code, state.verdict.failed) == (137, PS)
    _, todo = _drive(JOB, (1, Exited(WORKER0, OUT_OF_MEMORY)))
    assert "fewer workers on it" in str(todo[0])


@pytest.mark.parametrize("name", ["ps_s", "stop_s", "kill_s"])
def test_a_grace_is_positive(name: str) -> None:
    with pytest.raises(ValueError, match=rf"Grace\.{name} must be > 0 seconds, got 0"):
        Grace(**{name: 0.0})


_EVENTS = st.one_of(
    st.builds(Exited, st.sampled_from(sorted(JOB.alive, key=str)), st.sampled_from([0, 0, 0, 1, -9, -15])),
    st.builds(Interrupted, st.sampled_from([int(signal.SIGINT), int(signal.SIGTERM)])),
    st.just(Tick()),
    st.just(Closed()),
)


@given(st.lists(st.tuples(st.floats(0, 8), _EVENTS), max_size=12))
def test_every_job_ends_in_time_and_no_signal_goes_to_the_dead(steps: list[tuple[float, Event]]) -> None:
    state, now = JOB, 0.0
    for pause, event in steps:
        now += pause
        before = state
        state, todo = advance(state, event, now)
        assert (
            {instruction.task for instruction in todo if isinstance(instruction, Send)} <= state.alive <= before.alive
        )
        if before.verdict is not None:
            assert state.verdict == before.verdict  # the first cause stands
    # From the moment that it is told to end, it ends within the graces, even if nobody reacts.
    state, _ = advance(state, Closed(), now)
    for _ in range(3):
        now += max(GRACE.ps_s, GRACE.stop_s, GRACE.kill_s)
        state, _ = advance(state, Tick(), now)
    assert state.outcome is not None


EVALUATOR = Task("evaluator", 0)
AGAIN = Supervision(
    alive=frozenset({PS, WORKER0, WORKER1}), grace=GRACE, restarts=Restarts(limit=2, first_delay_s=1.0, settled_s=60.0)
)


def test_a_task_that_fails_is_started_again_and_each_time_later() -> None:
    state, todo = _drive(AGAIN, (10, Exited(WORKER1, -signal.SIGKILL)))
    assert todo == [Say("worker:1 failed (killed by SIGKILL); restarting it in 1 s (1 of 2)")]
    assert (state.next_s, state.outcome, state.phase) == (11, None, Phase.RUNNING)
    assert _drive(state, (10.9, Tick()))[1] == []
    state, todo = _drive(state, (11, Tick()))
    assert (todo, WORKER1 in state.alive, state.next_s) == ([Restart(WORKER1)], True, None)
    state, todo = _drive(state, (11.1, Restarted(WORKER1)), (12, Exited(WORKER1, 1)))
    assert todo == [Say("worker:1 failed (exit code 1); restarting it in 2 s (2 of 2)")]
    state, _ = _drive(state, (14, Tick()), (14.1, Restarted(WORKER1)))
    state, todo = _drive(state, (15, Exited(WORKER1, 1)))
    assert todo[0] == Say("worker:1 failed (exit code 1); stopping the others: ps:0, worker:0")
    assert state.verdict == Outcome(kind="failed", exit_code=1, failed=WORKER1, reason="exit code 1")


@pytest.mark.parametrize("group", [None, WorkerGroup(tasks=frozenset({WORKER0, WORKER1}), min_workers=2)])
def test_an_error_that_a_restart_would_repeat_fails_the_job_at_once(group: WorkerGroup | None) -> None:
    state, _ = _drive(replace(AGAIN, group=group), (1, Exited(WORKER1, INPUT_ERROR)), (6, Tick()))
    assert state.verdict is not None
    assert (state.verdict.failed, state.verdict.exit_code) == (WORKER1, INPUT_ERROR)
    assert not state.restart_at
    assert state.group_restart is None
    assert "a restart would fail again" in state.verdict.reason


def test_a_task_that_has_run_for_long_has_its_failures_forgotten() -> None:
    state, _ = _drive(AGAIN, (10, Exited(PS, 1)), (11, Tick()), (11, Restarted(PS)))
    state, _ = _drive(state, (20, Exited(PS, 1)), (22, Tick()), (22, Restarted(PS)))
    state, todo = _drive(state, (22 + 60, Exited(PS, 1)))
    assert todo == [Say("ps:0 failed (exit code 1); restarting it in 1 s (1 of 2)")]


def test_a_worker_that_waits_for_its_start_keeps_the_job_running() -> None:
    state, _ = _drive(AGAIN, (1, Exited(WORKER1, 1)), (1.5, Exited(WORKER0, 0)))
    assert state.phase is Phase.RUNNING
    state, _ = _drive(state, (2, Tick()), (2, Restarted(WORKER1)), (3, Exited(WORKER1, 0)))
    assert state.phase is Phase.ENDING


def test_a_signal_ends_what_waits_for_its_start_too() -> None:
    state, _ = _drive(AGAIN, (1, Exited(WORKER1, 1)), (1.1, Interrupted(signal.SIGINT)))
    for task in (PS, WORKER0):
        state, _ = _drive(state, (1.2, Exited(task, -signal.SIGTERM)))
    assert state.outcome is not None
    assert state.outcome.kind == "interrupted"


def test_an_evaluator_is_waited_for_and_fails_nobody_else() -> None:
    job = Supervision(alive=frozenset({PS, WORKER0, EVALUATOR}), grace=GRACE)
    state, _ = _drive(job, (1, Exited(WORKER0, 0)))
    assert state.phase is Phase.RUNNING
    assert _drive(state, (2, Exited(EVALUATOR, 0)))[0].phase is Phase.ENDING
    state, todo = _drive(job, (1, Exited(EVALUATOR, 3)))
    assert todo == [Say("evaluator:0 failed (exit code 3); training continues")]
    state, _ = _drive(state, (2, Exited(WORKER0, 0)), (3, Exited(PS, 0)))
    assert state.outcome == Outcome(kind="failed", exit_code=3, failed=EVALUATOR, reason="exit code 3")


@pytest.mark.parametrize("wrong", [{"limit": -1}, {"first_delay_s": 0.0}, {"max_delay_s": -1.0}, {"settled_s": 0.0}])
def test_restarts_are_checked_at_birth(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"Restarts.{next(iter(wrong))}"):
        Restarts(**wrong)  # type: ignore[arg-type]


MOVED = Supervision(
    alive=frozenset({PS, WORKER0}),
    tasks=frozenset({PS, WORKER0, WORKER1, Task("evaluator", 0)}),
    grace=GRACE,
    restarts=Restarts(limit=1),
)
"""`worker:1` has succeeded already."""


def test_a_ps_that_has_lost_its_address_takes_the_whole_job_along_once() -> None:
    state, todo = _drive(MOVED, (1, Exited(PS, -9, address_lost=True)))
    text = "ps:0 failed (killed by SIGKILL); stopping worker:0 and restarting the job in 1 s (1 of 1)"
    assert todo == [Say(text), Send(WORKER0, signal.SIGTERM)]
    state, todo = _drive(state, (1.5, Exited(WORKER0, 143)), (1.9, Tick()))
    assert (state.outcome, todo) == (None, [])
    state, todo = _drive(state, (2, Tick()))
    assert todo == [RestartGroup((PS, WORKER0, WORKER1))]
    assert state.alive == {PS, WORKER0, WORKER1}
    # From here on each task is on its own again.
    for task in (PS, WORKER0, WORKER1):
        state, _ = _drive(state, (2, Restarted(task)))
    state, todo = _drive(state, (3, Exited(WORKER0, 1)))
    assert todo == [Say("worker:0 failed (exit code 1); restarting it in 1 s (1 of 1)")]
    state, _ = _drive(state, (4, Exited(PS, -9, address_lost=True)))
    assert state.verdict == Outcome(kind="failed", exit_code=137, failed=PS, reason="killed by SIGKILL")


def test_without_restarts_a_lost_address_fails_the_job() -> None:
    state, _ = _drive(JOB, (1, Exited(PS, -9, address_lost=True)))
    assert state.verdict == Outcome(kind="failed", exit_code=137, failed=PS, reason="killed by SIGKILL")


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (0, Outcome(kind="failed", exit_code=1, failed=PS, reason="no room")),
        (signal.SIGINT, Outcome(kind="interrupted", exit_code=130, reason="SIGINT")),
    ],
)
def test_a_restart_that_cannot_be_ends_the_job(number: int, outcome: Outcome) -> None:
    tasks = (PS, WORKER0, WORKER1)
    state, _ = _drive(MOVED, (1, Exited(PS, -9, address_lost=True)), (1, Exited(WORKER0, 143)), (2, Tick()))
    state, todo = _drive(state, (3, NotRestarted(tasks, "no room", number)))
    assert state.outcome == outcome
    assert todo == [Say("the job cannot restart: " + ("received SIGINT" if number else "no room"))]
