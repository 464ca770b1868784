"""Ctrl-C at every stage, tasks that are killed, and tasks that stand still."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from tests.programs import LINE, Programs, ended

from trainband.ps.membership.job_end import LINGER_S

ENDLESS = ("--train_steps=100000000", "--pause_s=0.01")

# the stage, the flags that make it last, what says that it is reached
STAGES: list[tuple[str, list[str], str]] = [
    ("training", [*ENDLESS], r"training$"),
    ("initialising", [*ENDLESS, "--fault=init never ends"], r"initialising$"),
    ("evaluating", ["--train_steps=100", "--fault=evaluates for ever", "--of=worker:0"], r"evaluating$"),
]


@pytest.mark.parametrize(
    ("stage", "flags", "reached"),
    [
        pytest.param(*STAGES[0], marks=pytest.mark.slow),  # in `make test`, tests/cluster_failures/test_leaving.py
        STAGES[1],
        pytest.param(*STAGES[2], marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_of_the_launcher(stage: str, flags: list[str], reached: str, programs: Programs) -> None:
    job = programs.trainband("run", "--ps=1", "--workers=2", str(LINE), *flags)
    job.wait_for(rf"^\[worker:0\] {reached}")
    before = set(programs.processes())
    assert len(before) >= 4 + (stage != "evaluating")  # the launcher, its warden and the tasks
    job.interrupt()
    assert job.wait(40.0) == 130, job.output
    assert "trainband: received SIGINT; stopping " in job.stderr
    job.expect_no_noise()
    assert all(ended(pid, 15.0) for pid in before)


@pytest.mark.parametrize(
    ("stage", "flags", "reached"), [pytest.param(*STAGES[1], marks=pytest.mark.slow), STAGES[0], STAGES[2]]
)
def test_ctrl_c_of_a_worker_alone(
    stage: str, flags: list[str], reached: str, programs: Programs, ports: tuple[str, ...]
) -> None:
    tasks = programs.cluster(*flags, "--wait=start_s=10", ps=ports[:1], workers=ports[1:2])
    worker, ps = tasks["worker:0"], tasks["ps:0"]
    worker.wait_for(reached)
    worker.interrupt()
    assert worker.wait(40.0) == 130, worker.output
    worker.expect_no_noise()
    if stage == "initialising":  # it has not joined yet
        ps.interrupt()
        assert ps.wait(40.0) == 130
    elif stage == "evaluating":
        ps.succeed(40.0)
    else:
        ps.wait_for("worker:0 left the job: Ctrl-C asked this task to end", 40.0)
        ps.fail(r"^error: waited \d+\.\d s for a worker to come back, as none is left \(worker:0\)", 60.0)
    ps.expect_no_noise()


def test_ctrl_c_while_waiting_for_the_ps(programs: Programs, ports: tuple[str, ...]) -> None:
    worker = programs.task("worker:0", ps=ports[:1], workers=ports[1:2])
    worker.wait_for("waiting for ps:0")
    worker.interrupt()
    assert worker.wait(40.0) == 130, worker.output
    worker.expect_no_noise()


def test_ctrl_c_while_waiting_for_the_chief(programs: Programs, ports: tuple[str, ...]) -> None:
    ps = programs.task("ps:0", ps=ports[:1], workers=ports[1:3])
    worker = programs.task("worker:1", ps=ports[:1], workers=ports[1:3])
    worker.wait_for("^trainband: waiting for worker:0 to initialise the variables on ps:0")
    for task in (worker, ps):
        task.interrupt()
        assert task.wait(40.0) == 130, task.output
        task.expect_no_noise()


@pytest.mark.parametrize(
    ("number", "network_only"),
    [
        (signal.SIGINT, False),
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.slow),
        (signal.SIGKILL, True),
    ],
)
def test_the_end_of_a_ps_ends_its_workers(
    number: signal.Signals, network_only: bool, programs: Programs, ports: tuple[str, ...]
) -> None:
    flags = [*ENDLESS, "--transport=flight"] if network_only else ENDLESS
    tasks = programs.cluster(*flags, ps=ports[:1], workers=ports[1:3])
    for name in ("worker:0", "worker:1"):
        tasks[name].wait_for("^training$")
    tasks["ps:0"].send(number)
    assert tasks["ps:0"].wait(40.0) == (130 if number == signal.SIGINT else -number)
    tasks["ps:0"].expect_no_noise()
    for name in ("worker:0", "worker:1"):
        errors = tasks[name].fail(
            rf"^error: ps:0 has gone: {ports[0]} (has gone|closed the stream).* Check the last lines of its log",
            40.0,
        )
        assert errors.count("error:") == 1


def test_a_killed_worker_does_not_stop_the_others(programs: Programs, ports: tuple[str, ...], tmp_path: Path) -> None:
    steps, go = 1000, tmp_path / "go"
    tasks = programs.cluster(f"--train_steps={steps}", f"--go={go}", ps=ports[:1], workers=ports[1:4])
    for name in ("worker:0", "worker:1", "worker:2"):
        tasks[name].wait_for("^training$")
    tasks["worker:1"].send(signal.SIGKILL)
    assert tasks["worker:1"].wait() == -signal.SIGKILL
    go.touch()
    for name in ("worker:0", "worker:2"):
        assert f"{name} is done at global step {steps}, " in tasks[name].succeed()
    assert f"at global step {steps}\n" in tasks["worker:0"].stdout
    tasks["ps:0"].succeed(LINGER_S + 40.0)
    assert "trainband: worker:1 is gone: its stream broke off\n" in tasks["ps:0"].stderr
    waits = r"^trainband: waiting for worker:1 to check in at the end of the job \(\d+ s\)$"
    assert re.search(waits, tasks["ps:0"].stderr, re.MULTILINE)


@pytest.mark.parametrize("network_only", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_worker_that_stands_still_longer_than_its_lease(
    network_only: bool, programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    flags = ["--train_steps=1000", f"--go={go}", "--wait=lease_s=1,heartbeat_s=0.2,grace_s=1,connect_s=3,call_s=3"]
    flags += ["--transport=flight"] if network_only else []
    tasks = programs.cluster(*flags, ps=ports[:1], workers=ports[1:3])
    for name in ("worker:0", "worker:1"):
        tasks[name].wait_for("^training$")
    os.kill(tasks["worker:1"].pid, signal.SIGSTOP)
    tasks["ps:0"].wait_for(r"^trainband: worker:1 is gone: no heartbeat for 1 s$", 40.0)
    go.touch()
    assert "worker:0 is done at global step 1000" in tasks["worker:0"].succeed()
    tasks["ps:0"].succeed(LINGER_S + 40.0)
    os.kill(tasks["worker:1"].pid, signal.SIGCONT)
    tasks["worker:1"].fail(rf"^error: .*{ports[0]}", 40.0)


@pytest.mark.slow  # in `make test`, tests/simulation, where processes pause
def test_a_worker_that_stood_still_comes_back(programs: Programs, ports: tuple[str, ...], tmp_path: Path) -> None:
    go = tmp_path / "go"
    flags = ["--train_steps=1000", f"--go={go}", "--wait=lease_s=1,heartbeat_s=0.2"]
    tasks = programs.cluster(*flags, ps=ports[:1], workers=ports[1:3])
    for name in ("worker:0", "worker:1"):
        tasks[name].wait_for("^training$")
    os.kill(tasks["worker:1"].pid, signal.SIGSTOP)
    tasks["ps:0"].wait_for(r"^trainband: worker:1 is gone: no heartbeat for 1 s$", 40.0)
    os.kill(tasks["worker:1"].pid, signal.SIGCONT)
    tasks["ps:0"].wait_for(r"^trainband: worker:1 is back$", 40.0)
    go.touch()
    for name in ("worker:0", "worker:1"):
        assert f"{name} is done at global step 1000" in tasks[name].succeed()
    tasks["ps:0"].succeed(40.0)


def test_a_chief_that_fails_before_it_has_initialised(programs: Programs, ports: tuple[str, ...]) -> None:
    flags = ["--fault=init fails", "--of=worker:0", "--wait=start_s=10"]
    tasks = programs.cluster(*flags, ps=ports[:1], workers=ports[1:3])
    tasks["worker:0"].fail("^error: the file with the first values is not there")
    tasks["worker:1"].wait_for(r"^trainband: waiting for worker:0 to initialise the variables on ps:0 \(\d s\)$", 40.0)
    tasks["worker:1"].fail(
        r"^error: waited \d+\.\d s for worker:0 to initialise the variables on ps:0; check that it", 60
    )
    tasks["ps:0"].interrupt()
    assert tasks["ps:0"].wait(40.0) == 130
    tasks["ps:0"].expect_no_noise()
