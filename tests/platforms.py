"""What every platform of the launcher is tested by: the examples, and deaths that they survive."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.programs import MNIST, ROOT, Program, Programs

KERAS = ROOT / "examples" / "keras_digits.py"
DEADLINE_S = 200.0
STEPS = 1500

EXIT_AFTER_ALL = """
open("up-" + task, "w").close()
def exit_after_all(code):
    while len([name for name in os.listdir() if name.startswith("up-")]) < 3:
        time.sleep(0.01)
    sys.exit(code)
"""
"""For a script of three tasks, each of which has printed something: the end of one must not end another before that."""


def accuracy(output: str) -> float:
    """Of an example's last line, on digits that it has not trained on."""
    found = re.search(r"held out: loss [\d.]+, accuracy ([\d.]+)", output)
    assert found, output
    return float(found[1])


def pid_of(programs: Programs, task: str) -> int:
    """The process of a task, which has its name in its environment."""
    kind, _, index = task.partition(":")
    wanted = f'"task": {{"type": "{kind}", "index": {index}}}'.encode()
    for pid in programs.processes():
        if wanted in Path(f"/proc/{pid}/environ").read_bytes():
            return pid
    pytest.fail(f"no process is {task}")


def mnist_with_checkpoints(directory: Path) -> tuple[str, ...]:
    """The arguments of a job that is long enough to be killed in."""
    checkpoints = ("--checkpoint_dir", str(directory / "checkpoints"), "--save_steps", "100")
    return (str(MNIST), "--", f"--train_steps={STEPS}", *checkpoints)


def kill_a_worker_and_the_ps(programs: Programs, job: Program) -> None:
    """Kills both in turn, the job being one of `mnist_with_checkpoints` with restarts, and looks at how it ends."""
    for saved, task in enumerate(("worker:1", "ps:0"), start=1):
        job.wait_for(rf"(?s:(checkpoint of global step .*){{{saved}}})")
        os.kill(pid_of(programs, task), signal.SIGKILL)
        job.wait_for(rf"{task} failed \(killed by SIGKILL\)")
    assert job.wait(DEADLINE_S) == 0, job.output
    assert accuracy(job.stdout) > 0.94
    assert f"at global step {STEPS}" in job.stdout
