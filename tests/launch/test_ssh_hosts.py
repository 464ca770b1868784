"""Jobs on several machines, which are reached by a real ssh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machines import Machines
from tests.platforms import DEADLINE_S, KERAS, accuracy, kill_a_worker_and_the_ps, mnist_with_checkpoints
from tests.programs import Program, Programs
from tests.ssh_hosts import reachable_by_ssh


@pytest.fixture
def ssh(machines: Machines, tmp_path: Path) -> Iterator[str]:
    with reachable_by_ssh(machines, tmp_path) as command:
        yield command


def job(programs: Programs, machines: Machines, ssh: str, *options: str) -> Program:
    """`trainband run --on ssh` on the first machine, with tasks on the others."""
    hosts = ",".join(address.partition(":")[0] for address in machines.addresses[1:])
    on = ("--on", "ssh", "-o", f"hosts={hosts}", "-o", f"ssh={ssh}", "--ps", "1", "--workers", "2")
    return programs.trainband("run", *on, *options, machine=machines.names[0])


def test_a_job_survives_the_deaths_of_a_worker_and_of_the_ps(
    machines: Machines, ssh: str, programs: Programs, tmp_path: Path
) -> None:
    kill_a_worker_and_the_ps(
        programs, job(programs, machines, ssh, "--restarts", "2", *mnist_with_checkpoints(tmp_path))
    )


@pytest.mark.slow
def test_a_keras_program_runs_on_other_machines(machines: Machines, ssh: str, programs: Programs) -> None:
    assert accuracy(job(programs, machines, ssh, str(KERAS)).succeed(DEADLINE_S)) > 0.96
