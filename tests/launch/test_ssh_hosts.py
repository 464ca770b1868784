"""Jobs on several machines, which are reached by a real ssh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machines import Machines
from tests.platforms import DEADLINE_S, KERAS, accuracy, kill_a_worker_and_the_ps, mnist_with_checkpoints
from tests.programs import Program, Programs, until
from tests.ssh_hosts import reachable_by_ssh


@pytest.fixture
def ssh(machines: Machines, tmp_path: Path) -> Iterator[str]:
    with reachable_by_ssh(machines, tmp_path) as command:
        yield command


def job(programs: Programs, machines: Machines, ssh: str, *options: str) -> Program:
    """`trainband run --on ssh` on the first machine, with tasks on the others."""
    hosts = ",".join(address.partition(":")[0] for address in machines.addresses[1:])
    on = ("--on", "ssh", "-o", f"hosts={hosts}", "-o", f"ssh={ssh}", "--workers", "2")
    return programs.trainband("run", *on, *options, machine=machines.names[0])


@pytest.mark.limit(240)
def test_a_job_survives_the_deaths_of_a_worker_and_of_the_ps(
    machines: Machines, ssh: str, programs: Programs, tmp_path: Path
) -> None:
    kill_a_worker_and_the_ps(
        programs, job(programs, machines, ssh, "--restarts", "2", *mnist_with_checkpoints(tmp_path))
    )


@pytest.mark.slow
@pytest.mark.limit(240)
def test_a_keras_program_runs_on_other_machines(machines: Machines, ssh: str, programs: Programs) -> None:
    assert accuracy(job(programs, machines, ssh, str(KERAS)).succeed(DEADLINE_S)) > 0.96


@pytest.mark.slow
@pytest.mark.limit(240)
def test_a_machine_that_vanishes_is_left_out(machines: Machines, ssh: str, programs: Programs, tmp_path: Path) -> None:
    flags = ("--steps=400", "--step_s=0.05", f"--dir={tmp_path / 'saved'}", "--timeout_s=6")
    options = ("--ps", "0", "--min-workers", "1", "-m", "tests.cluster_allreduce.in_step", *flags)
    run = job(programs, machines, ssh, *options)
    until(lambda: bool(list(tmp_path.glob("saved/step-*[1-9]*"))), f"a checkpoint of {run.name}", DEADLINE_S)
    machines.unplug(2)
    assert run.wait(DEADLINE_S) == 0, run.output
    assert "worker:1 failed once; continuing without it on 1 worker" in run.stderr, run.output
    assert "[worker:0] worker:0 is done at global step 400" in run.stdout
    machines.plug(2)  # where the launcher has not been heard for a minute
    until(lambda: not programs.processes(), "the end of every task", 120.0)
