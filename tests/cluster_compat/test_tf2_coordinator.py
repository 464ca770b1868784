"""ParameterServerStrategy with one process a task: a whole job, and the deaths of its tasks."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from tests.programs import Program, Programs

pytestmark = pytest.mark.limit(240)


def start_task(programs: Programs, ports: tuple[str, ...], job: str, index: int, *args: str) -> Program:
    config = {"chief": [ports[0]], "worker": [*ports[1:3]], "ps": [ports[3]]}
    task = {"cluster": config, "task": {"type": job, "index": index}}
    environ = {"TF_CONFIG": json.dumps(task), "KERAS_BACKEND": "jax"}
    return programs.python(f"{job}:{index}", "-m", "tests.cluster_compat.coordinated", *args, environ=environ)


def start(programs: Programs, ports: tuple[str, ...], *args: str) -> dict[str, Program]:
    tasks = [("ps", 0), ("worker", 0), ("worker", 1), ("chief", 0)]
    return {f"{job}:{index}": start_task(programs, ports, job, index, *args) for job, index in tasks}


def test_a_job_outlives_a_worker(programs: Programs, ports: tuple[str, ...], tmp_path: Path) -> None:
    over = tmp_path / "over"
    tasks = start(programs, ports, "40", str(over))
    chief = tasks["chief:0"]
    chief.wait_for("HALF")
    tasks["worker:0"].send(signal.SIGKILL)
    chief.wait_for("worker:0 is lost")
    again = start_task(programs, ports, "worker", 0)
    chief.wait_for("worker:0 is there")
    over.touch()
    output = chief.succeed()
    assert "WEIGHTS [1.0, 2.0, 3.0, 4.0]" in output
    assert int(output.split("EXTRA ")[1].split()[0]) in (0, 1, 2)  # what the worker had done and not told of
    for task in (tasks["worker:1"], tasks["ps:0"], again):
        task.succeed()


def test_a_job_ends_with_its_ps(programs: Programs, ports: tuple[str, ...], tmp_path: Path) -> None:
    tasks = start(programs, ports, "20", str(tmp_path / "never"))
    tasks["chief:0"].wait_for("HALF")
    tasks["ps:0"].send(signal.SIGKILL)
    assert tasks["chief:0"].wait() == 1
    assert re.search(
        r"UnavailableError: ps:0 (at \S+ )?does not answer, and the variables on it are lost", tasks["chief:0"].stderr
    )
    for name in ("worker:0", "worker:1"):
        tasks[name].succeed()
