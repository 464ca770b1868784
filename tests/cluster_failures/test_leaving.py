"""SIGTERM to workers of a job on parameter servers: each finishes its step, if it can, and leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.programs import LINE, ROOT, Program, Programs, until

from trainband.checkpoint import CheckpointDirectory
from trainband.runtime.signals import ECHO_S

WORKERS = ("worker:0", "worker:1")
LEAVES = r"SIGTERM asked this task to end; it leaves the job at global step ([\d,]+)$"


@pytest.mark.parametrize(
    ("ps", "flags", "deadline_s"),
    [
        pytest.param(2, [], 40.0, id="fit"),
        pytest.param(
            1, ["--fault=no question"], 15.0, id="a loop that does not ask whether to stop", marks=pytest.mark.slow
        ),
    ],
)
def test_ctrl_c_of_the_launcher_lets_every_worker_finish_its_step(
    ps: int, flags: list[str], deadline_s: float, programs: Programs
) -> None:
    job = programs.trainband("run", f"--ps={ps}", "--workers=2", str(LINE), "--train_steps=100000000", *flags)
    for name in WORKERS:
        job.wait_for(rf"^\[{name}\] training$")
    job.interrupt()
    assert job.wait(deadline_s) == 130, job.output
    for name in WORKERS:
        assert re.search(rf"^\[{name}\] trainband: {name}: {LEAVES}", job.stderr, re.MULTILINE), job.output
    job.expect_no_noise()


def started(
    programs: Programs,
    ports: tuple[str, ...],
    directory: Path,
    step_s: float,
    *,
    rule: str = "sync",
    only: Mapping[str, int] | None = None,
) -> dict[str, Program]:
    """A job of one ps and two workers, which train; some of them have `only` so many batches."""
    cluster = {"ps": ports[:1], "worker": ports[1:3]}
    script = str(ROOT / "tests" / "resumable.py")
    tasks = {}
    for job, index in (("ps", 0), ("worker", 0), ("worker", 1)):
        environ = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}
        flags = ["--steps=100000", f"--step_s={step_s}", "--save_steps=20", f"--dir={directory}", f"--rule={rule}"]
        flags += [f"--batches={(only or {}).get(f'{job}:{index}', 0)}"]
        tasks[f"{job}:{index}"] = programs.python(f"{job}:{index}", script, *flags, environ=environ)
    for name in WORKERS:
        tasks[name].wait_for("^training$")
    return tasks


def test_the_only_worker_may_come_back(programs: Programs) -> None:
    """It has left, but the job is not over by that: the ps keeps what it has until the worker is back."""
    job = programs.trainband(
        "run", "--ps=1", "--workers=1", "--restarts=1", str(LINE), "--train_steps=400", "--pause_s=0.02"
    )
    process = job.wait_for(r"^\[worker:0\] worker:0 is process (\d+)$")[1]
    job.wait_for(r"^\[worker:0\] training$")
    os.kill(int(process), signal.SIGTERM)
    output = job.succeed()
    assert "worker:0 failed (exit code 143); restarting it in 1 s (1 of 1)" in job.stderr
    assert "[ps:0] trainband: worker:0 left the job: SIGTERM asked this task to end\n" in job.stderr
    assert "[worker:0] worker:0 is done at global step 400, " in output
    left = re.search(LEAVES, job.stderr, re.MULTILINE)
    assert left
    assert int(left[1]) > 0


def test_a_chief_that_waits_for_the_others_has_not_ended_the_training(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    tasks = started(programs, ports, tmp_path, step_s=0.1, rule="async", only={"worker:0": 5})
    tasks["worker:0"].wait_for("^trainband: waiting for worker:1 to end the training")
    tasks["worker:0"].send(signal.SIGTERM)
    assert tasks["worker:0"].wait(40.0) == 128 + signal.SIGTERM, tasks["worker:0"].output
    newest = CheckpointDirectory(tmp_path, pytest.fail).newest()
    assert newest is not None
    assert not newest.manifest.complete
    tasks["worker:1"].send(signal.SIGTERM)
    assert tasks["worker:1"].wait(40.0) == 128 + signal.SIGTERM
    tasks["ps:0"].send(signal.SIGTERM)
    assert tasks["ps:0"].wait(40.0) == 128 + signal.SIGTERM


def test_without_its_ps_a_worker_leaves_in_the_middle_of_its_step(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    tasks = started(programs, ports, tmp_path, step_s=0.02)
    tasks["ps:0"].send(signal.SIGKILL)
    tasks["ps:0"].wait()
    for name in WORKERS:
        tasks[name].wait_for("^trainband: waiting for ps:0 ")
        tasks[name].send(signal.SIGTERM)
    for name in WORKERS:
        assert tasks[name].wait(40.0) == 128 + signal.SIGTERM, tasks[name].output
        said = rf"^trainband: {name}: SIGTERM asked this task to end; it leaves during a step: waited .* ps:0 "
        assert re.search(said, tasks[name].stderr, re.MULTILINE), tasks[name].output
        tasks[name].expect_no_noise()


def test_where_all_are_asked_at_once_the_chief_still_saves(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    tasks = started(programs, ports, tmp_path, step_s=0.5)
    for task in tasks.values():
        task.send(signal.SIGTERM)
    for name, task in tasks.items():
        assert task.wait(40.0) == 128 + signal.SIGTERM, tasks[name].output
        task.expect_no_noise()
    left = re.search(rf"^trainband: worker:0: {LEAVES}", tasks["worker:0"].stderr, re.MULTILINE)
    assert left, tasks["worker:0"].output
    newest = CheckpointDirectory(tmp_path, pytest.fail).newest()
    assert newest is not None
    assert newest.global_step >= int(left[1].replace(",", "")) > 0
    assert "it serves worker:0, worker:1 until they leave" in tasks["ps:0"].stderr


def test_a_second_sigterm_kills(programs: Programs, ports: tuple[str, ...], tmp_path: Path) -> None:
    """But for an echo of the first: see `ECHO_S`."""
    tasks = started(programs, ports, tmp_path, step_s=120.0)
    for name in WORKERS:
        task, began = tasks[name], time.monotonic()

        def ends_by_another(task: Program = task) -> bool:
            task.send(signal.SIGTERM)
            return task.ended_at is not None

        until(ends_by_another, "the end by a second SIGTERM")
        assert task.wait() == -signal.SIGTERM, task.output
        assert task.ended_at is not None
        assert task.ended_at - began > ECHO_S
    tasks["ps:0"].interrupt()
    assert tasks["ps:0"].wait() == 130
