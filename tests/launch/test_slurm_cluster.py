"""Jobs on a real Slurm, whose nodes all are this machine."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from tests.platforms import (
    DEADLINE_S,
    EXIT_AFTER_ALL,
    KERAS,
    accuracy,
    kill_a_worker_and_the_ps,
    mnist_with_checkpoints,
)
from tests.programs import MNIST, ROOT, Program, Programs, until
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster import slurm as slurm

from trainband.checkpoint import CheckpointDirectory
from trainband.cluster.resolvers.credentials import SECRET_FILE

RESUMABLE = ROOT / "tests" / "resumable.py"

TASK = (
    """
import json, os, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task = "{type}:{index}".format(**config["task"])
address = config["cluster"][config["task"]["type"]][config["task"]["index"]]
secret = open(os.environ["TRAINBAND_SECRET_FILE"]).read()
print(task, os.environ["SLURMD_NODENAME"], address, len(secret) > 0, os.getcwd(), flush=True)
def wait_forever():
    while True:
        signal.pause()
"""
    + EXIT_AFTER_ALL
)


def command(tmp_path: Path, *options: str, code: str = "") -> list[str]:
    """The arguments of Python for `trainband run --on slurm`, of a script with these lines where there are any."""
    script = tmp_path / "script.py"
    script.write_text(TASK + code)
    return ["-m", "trainband.cli.main", "run", "--on", "slurm", *options, *([str(script)] if code else [])]


def submitted(programs: Programs, slurm: SlurmCluster, tmp_path: Path, *options: str, code: str = "") -> Program:
    """A job that is submitted and followed."""
    return programs.python(
        "trainband run", *command(tmp_path, *options, code=code), environ=slurm.environ, cwd=tmp_path
    )


def within(programs: Programs, slurm: SlurmCluster, tmp_path: Path, *options: str, code: str, of: str) -> Program:
    """A job in an allocation of a shell's."""
    python = [sys.executable, *command(tmp_path, *options, code=code)]
    return programs.start("salloc", "salloc", "--quiet", *of.split(), *python, environ=slurm.environ, cwd=tmp_path)


def left(tmp_path: Path) -> list[str]:
    """What a run has left in its directory."""
    ours = re.compile("script.py|checkpoints|up-.*")
    return sorted(path.name for path in tmp_path.iterdir() if not ours.fullmatch(path.name))


@pytest.mark.limit(300)
def test_a_heterogeneous_job_survives_the_deaths_of_a_worker_and_of_the_ps(
    slurm: SlurmCluster, programs: Programs, tmp_path: Path
) -> None:
    options = ("-o", "ps_partition=cpu", "-o", "nodes=2", "--ps", "1", "--workers", "2", "--restarts", "2")
    job = submitted(programs, slurm, tmp_path, *options, *mnist_with_checkpoints(tmp_path))
    job.wait_for(r"Slurm job \d+ runs on (c0,127\.0\.0\.\[11-12\]|127\.0\.0\.\[11-12\],c0)")
    kill_a_worker_and_the_ps(programs, job)
    assert left(tmp_path) == []


@pytest.mark.slow
@pytest.mark.limit(300)
@pytest.mark.parametrize("ps", ["1", "0"])
def test_a_keras_program_runs_on_its_nodes(ps: str, slurm: SlurmCluster, programs: Programs, tmp_path: Path) -> None:
    options = ("-o", "nodes=2", "--ps", ps, "--workers", "2")
    job = submitted(programs, slurm, tmp_path, *options, str(KERAS))
    assert accuracy(job.succeed(DEADLINE_S)) > 0.96


def test_tasks_are_on_the_nodes_of_their_group(slurm: SlurmCluster, programs: Programs, tmp_path: Path) -> None:
    options = ("-o", "ps-partition=cpu", "-o", "nodes=2", "-o", f"output={tmp_path / 'log.txt'}")
    job = submitted(
        programs, slurm, tmp_path, *options, code="exit_after_all(3) if task == 'worker:1' else wait_forever()"
    )
    assert job.wait() == 3, job.output
    for task, node, address in (("ps:0", "c0", "127.0.0.21"), ("worker:1", "127.0.0.12", "127.0.0.12")):
        line = rf"^\[{task}\] {task} {node} {address}:\d+ True {tmp_path}$"
        assert re.search(line, job.stdout, re.M), job.output
    assert len(re.findall(r"worker:1 failed: exit code 3", job.stderr)) == 1
    assert "srun" not in job.output, "it says nothing of its own about a task's exit"
    assert left(tmp_path) == ["log.txt"]
    assert "[worker:1] worker:1 " in (tmp_path / "log.txt").read_text()


def test_in_an_allocation_tasks_share_nodes_where_they_must(
    slurm: SlurmCluster, programs: Programs, tmp_path: Path
) -> None:
    job = within(programs, slurm, tmp_path, "--workers", "4", code="pass", of="-N2 -n6")
    found = sorted(re.findall(r"^\[(\S+)\] \S+ (\S+)", job.succeed(), re.M))
    first, second = "127.0.0.11", "127.0.0.12"
    where = [first, first, first, second, second] if found[3][1] == second else [first, first, first, first, second]
    assert found == list(zip(["ps:0", *(f"worker:{i}" for i in range(4))], where, strict=True))
    small = within(programs, slurm, tmp_path, "--workers", "4", code="pass", of="-N1 -n2")
    small.fail("Slurm job 2 has 1 node with 2 CPUs, and 5 tasks .1 ps, 4 worker. need a CPU each", code=2)


def test_nothing_stays_after_a_ctrl_c(slurm: SlurmCluster, programs: Programs, tmp_path: Path) -> None:
    job = submitted(programs, slurm, tmp_path, "-o", "nodes=2", code="wait_forever()")
    for task in ("ps:0", "worker:0", "worker:1"):
        job.wait_for(rf"^\[{task}\] {task}")
    assert len(programs.processes()) > 6
    job.interrupt()
    assert job.wait() == 128 + signal.SIGINT, job.output
    programs.expect_none_left()
    assert slurm.jobs() == []
    assert left(tmp_path) == []


def test_nothing_stays_where_a_launcher_in_an_allocation_is_killed(
    slurm: SlurmCluster, programs: Programs, tmp_path: Path
) -> None:
    shell = within(programs, slurm, tmp_path, code="wait_forever()", of="-N2 -n3")
    for task in ("ps:0", "worker:0", "worker:1"):
        shell.wait_for(rf"^\[{task}\] {task}")
    python = sys.executable.encode() + b"\0-m\0trainband.cli.main\0"
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in programs.processes()}
    [launcher] = [pid for pid, command in commands.items() if command.startswith(python)]
    os.kill(launcher, signal.SIGKILL)
    shell.wait()
    programs.expect_none_left()
    assert slurm.jobs() == []


def test_somebody_elses_scancel_fails_the_job(slurm: SlurmCluster, programs: Programs, tmp_path: Path) -> None:
    job = submitted(programs, slurm, tmp_path, code="wait_forever()")
    job.wait_for(r"^\[worker:1\] worker:1")
    slurm.command("scancel", "1")
    assert job.wait() == 128 + signal.SIGTERM, job.output
    assert "Slurm job 1 is CANCELLED" in job.stderr
    programs.expect_none_left()
    assert slurm.jobs() == [], "it does not come back"


def test_what_a_job_waits_for_is_said(slurm: SlurmCluster, programs: Programs, tmp_path: Path) -> None:
    slurm.command("sbatch", "--nodes=2", "--exclusive", "--wrap", "sleep 100")
    job = submitted(programs, slurm, tmp_path, code="pass")
    job.wait_for(r"Slurm job 2 is in the queue: PENDING \((Resources|Priority)\)$")
    job.interrupt()
    assert job.wait() == 128 + signal.SIGINT, job.output
    assert slurm.jobs() == ["1"]
    refused = submitted(programs, slurm, tmp_path, "-o", "partition=none", code="pass")
    refused.fail("Slurm's sbatch failed: .*invalid partition specified: none", code=2)
    assert left(tmp_path) == []


@pytest.mark.limit(200)
@pytest.mark.parametrize("warned", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_job_that_is_preempted_resumes_from_its_checkpoint(
    warned: bool, slurm: SlurmCluster, programs: Programs, tmp_path: Path
) -> None:
    flags = ("--steps=160", "--step_s=0.05", "--save_steps=20", "--rule=sync", f"--dir={tmp_path / 'checkpoints'}")
    job = submitted(programs, slurm, tmp_path, "-o", "nodes=2", str(RESUMABLE), "--", *flags)
    directory = CheckpointDirectory(tmp_path / "checkpoints", pytest.fail)
    until(lambda: len(directory.steps()) >= 2, "the second checkpoint")
    saved = set(directory.steps())
    if warned:
        slurm.command("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--wrap", "sleep 1")
        job.wait_for(r"Slurm ends its job 1 here \(SIGUSR1\); putting it back into the queue")
    else:
        slurm.command("scontrol", "requeue", "1")  # as for a job with a higher priority: SIGTERM to all at once
    job.wait_for(r"Slurm job 1 is in the queue: PENDING \(BeginTime\)")
    slurm.command("scontrol", "update", "JobId=1", "StartTime=now")  # Slurm would let it wait two minutes
    assert re.search(r"digest \w+ at global step 160$", job.succeed(DEADLINE_S), re.M)
    resumed = re.findall(r"resumes from \S+ \(global step (\d+)\)", job.stderr)
    assert len(resumed) == 1
    assert int(resumed[0]) > max(saved), "it has saved when it was asked to end"
    assert left(tmp_path) == []


def test_tasks_of_srun_find_each_other_without_a_launcher(
    slurm: SlurmCluster, programs: Programs, tmp_path: Path
) -> None:
    environ = {**slurm.environ, "TRAINBAND_PS": "1", SECRET_FILE: str(programs.secret())}
    srun = ("srun", "--nodes=2", "--ntasks=3", "--label", sys.executable, str(MNIST), "--train_steps=600")
    output = programs.start("srun", *srun, environ=environ, cwd=tmp_path).succeed()
    assert accuracy(output) > 0.94
    assert set(re.findall(r"(worker:\d): \d+ of 600 steps", output)) == {"worker:0", "worker:1"}
