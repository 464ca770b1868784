"""A ps that dies and comes back: nothing is restarted around it."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from tests.programs import ROOT, Programs, until

from trainband.checkpoint import CheckpointDirectory

SCRIPT = ROOT / "tests" / "resumable.py"
STEPS = 400


def process_of(programs: Programs, task: str) -> int:
    """The process of a task that the launcher has started."""
    job, _, index = task.partition(":")
    for pid in programs.processes():
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        environ = dict(entry.partition(b"=")[::2] for entry in entries if entry)
        if b"TF_CONFIG" in environ and SCRIPT.name.encode() in command:
            who = json.loads(environ[b"TF_CONFIG"])["task"]
            if (who["type"], who["index"]) == (job, int(index)):
                return pid
    pytest.fail(f"there is no process of {task}")


# the rule, who is killed, what is said by those who live
KILLED = [
    ("sync", "ps:1", r"^\[worker:1\] trainband: ps:1 at \S+ is back, with the values of the last checkpoint$"),
    pytest.param(
        *("async", "ps:0", r"^\[worker:1\] trainband: ps:0 at \S+ is back, with the values of the last checkpoint$"),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        *("sync", "worker:1", r"^\[ps:0\] trainband: worker:1 is gone: its stream broke off$"), marks=pytest.mark.slow
    ),
    pytest.param(
        *("bounded", "worker:0", r"^\[ps:0\] trainband: worker:0 is gone: its stream broke off$"),
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("rule", "task", "said"), KILLED)
def test_a_task_that_is_killed_comes_back(rule: str, task: str, said: str, programs: Programs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = programs.trainband(
        "run",
        "--ps=2",
        "--workers=2",
        "--restarts=2",
        str(SCRIPT),
        f"--steps={STEPS}",
        "--step_s=0.04",
        f"--go={go}",
        "--save_steps=20",
        f"--rule={rule}",
        f"--dir={tmp_path}",
    )
    home = CheckpointDirectory(tmp_path, pytest.fail)
    until(lambda: len(home.steps()) >= 1, "a checkpoint")
    os.kill(process_of(programs, task), signal.SIGKILL)
    go.touch()
    output = job.succeed()
    assert f"trainband: {task} failed (killed by SIGKILL); restarting it in 1 s (1 of 2)" in job.stderr
    assert re.search(said, job.stderr, re.M), job.output
    assert re.search(rf"digest \w+ at global step {STEPS}$", output, re.M), job.output
    newest = home.newest()
    assert newest is not None
    assert [part.version for part in newest.manifest.parts] == [STEPS, STEPS], "every ps has made each update"
    assert newest.manifest.trainings == (0,)


@pytest.mark.slow  # in `make test`, test_the_end_of_a_ps_ends_its_workers
def test_without_checkpoints_the_death_of_a_ps_ends_the_job(programs: Programs) -> None:
    job = programs.trainband("run", "--ps=2", "--workers=2", str(SCRIPT), "--steps=100000", "--step_s=0.02")
    job.wait_for(r"^\[worker:0\] training")
    os.kill(process_of(programs, "ps:1"), signal.SIGKILL)
    assert job.wait() != 0
    assert "ps:1 failed (killed by SIGKILL)" in job.stderr
