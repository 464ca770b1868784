"""ParameterServerStrategy with one process a task: a whole job, and the deaths of its tasks."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from tests.programs import Program, Programs
from tests.security.insiders import VECTOR, closure_of

from trainband.cluster.identity import Identity
from trainband.compat.tf2.coordinator import records as r
from trainband.compat.tf2.coordinator.link import Link
from trainband.compat.tf2.coordinator.programs import exported
from trainband.wire.network import Network
from trainband.wire.transport import Timeouts

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
    chief.wait_for("worker:0 is connected")
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


@pytest.mark.slow
def test_a_job_outlives_its_coordinator(programs: Programs, ports: tuple[str, ...], tmp_path: Path) -> None:
    tasks = start(programs, ports, "20", str(tmp_path / "never"))
    tasks["chief:0"].wait_for("HALF")
    tasks["chief:0"].send(signal.SIGKILL)
    again = start_task(programs, ports, "chief", 0, "20")
    assert "EXTRA 0" in again.succeed()  # on variables of its own
    for name in ("ps:0", "worker:0", "worker:1"):
        tasks[name].succeed()


@pytest.mark.slow
def test_a_closure_without_end_ends_with_its_coordinator(programs: Programs, ports: tuple[str, ...]) -> None:
    worker = start_task(programs, ports, "worker", 0)
    worker.wait_for(f"worker:0 is at {ports[1]}")
    link = Link("worker:0", ports[1], r.FromWorker, Network(identity=Identity("chief:0", "one")), Timeouts())
    link.open(r.Hello("one", coordinates=True))
    link.ask(r.Attach(()), (), 60.0)
    endless = exported(lambda x: [jax.lax.while_loop(lambda y: y[0] > 0, lambda y: y + 1, x)], [VECTOR], "cpu")
    link.send(*closure_of(endless))
    link.send(r.Run(1, 0), [np.ones(3, np.float32)])
    link.close()
    assert worker.wait() == 1
    assert re.search(r"worker:0 ends: a closure still runs 10 s after its coordinator has gone", worker.stderr)
