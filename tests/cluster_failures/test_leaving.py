"""SIGTERM to workers of a job on parameter servers: each finishes its step, if it can, and leaves."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
from tests.programs import LINE, ROOT, Program, Programs, until

from trainband.checkpoint import CheckpointDirectory

WORKERS = ("worker:0", "worker:1")
LEAVES = r"SIGTERM asked this task to end; it leaves the job at global step (\d+)$"


def test_ctrl_c_of_the_launcher_lets_every_worker_finish_its_step(programs: Programs) -> None:
    job = programs.trainband("run", "--ps=2", "--workers=2", str(LINE), "--train_steps=100000000")
    for name in WORKERS:
        job.wait_for(rf"^\[{name}\] training$")
    job.interrupt()
    assert job.wait(40.0) == 130, job.output
    for name in WORKERS:
        assert re.search(rf"^\[{name}\] trainband: {name}: {LEAVES}", job.stderr, re.MULTILINE), job.output
    job.expect_no_noise()


def started(programs: Programs, ports: tuple[str, ...], directory: Path, step_s: float) -> dict[str, Program]:
    """A job of one ps and two workers, which train."""
    cluster = {"ps": ports[:1], "worker": ports[1:3]}
    script = str(ROOT / "tests" / "resumable.py")
    tasks = {}
    for job, index in (("ps", 0), ("worker", 0), ("worker", 1)):
        environ = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}
        flags = ("--steps=100000", f"--step_s={step_s}", "--save_steps=20", f"--dir={directory}")
        tasks[f"{job}:{index}"] = programs.python(f"{job}:{index}", script, *flags, environ=environ)
    for name in WORKERS:
        tasks[name].wait_for("^training$")
    return tasks


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
        said = (
            rf"^trainband: {name}: SIGTERM asked this task to end; it leaves in the middle of a step: waited .* ps:0 "
        )
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
    assert newest.global_step >= int(left[1]) > 0
    assert "it serves worker:0, worker:1 until they leave\n" in tasks["ps:0"].stderr


def test_a_second_sigterm_kills(programs: Programs, ports: tuple[str, ...], tmp_path: Path) -> None:
    tasks = started(programs, ports, tmp_path, step_s=120.0)
    for name in WORKERS:
        tasks[name].send(signal.SIGTERM)
    time.sleep(1.0)
    for name in WORKERS:
        assert tasks[name].ended_at is None, "it finishes its step"

    def ended(worker: Program) -> bool:
        worker.send(signal.SIGTERM)  # the first may have come at the same time as the one before
        return worker.ended_at is not None

    for name in WORKERS:
        until(lambda worker=tasks[name]: ended(worker), "its end", 20.0)  # type: ignore[misc]
        assert tasks[name].wait() == -signal.SIGTERM, tasks[name].output
    tasks["ps:0"].interrupt()
    assert tasks["ps:0"].wait() == 130
