"""A job that is stopped, in whatever way, and goes on: on the same tasks, on others, or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import ROOT, Program, Programs, until

from trainband.checkpoint import CheckpointDirectory

SCRIPT = ROOT / "tests" / "resumable.py"
DIGEST = re.compile(r"digest (\w+) at global step (\d+)")


def run(programs: Programs, directory: Path | None, *flags: str, ps: int = 1, workers: int = 2) -> Program:
    """Starts the training as a cluster, or alone where there are no ps."""
    flags = (*flags, f"--dir={directory}") if directory is not None else flags
    if not ps:
        return programs.python("alone", str(SCRIPT), *flags)
    return programs.trainband("run", f"--ps={ps}", f"--workers={workers}", str(SCRIPT), *flags)


def digest_of(program: Program) -> tuple[str, int]:
    """Waits for a good end; gives the digest of the params and the global step."""
    found = DIGEST.search(program.succeed())
    assert found, program.output
    return found[1], int(found[2])


def steps_in(directory: Path) -> list[int]:
    return CheckpointDirectory(directory, pytest.fail).steps()


def test_from_one_process_to_a_cluster_with_an_evaluator(programs: Programs, tmp_path: Path) -> None:
    assert digest_of(run(programs, tmp_path, "--steps=60", ps=0))[1] == 60
    flags = ("--ps=2", "--workers=2", "--evaluator", str(SCRIPT), "--steps=90", "--rule=bounded", f"--dir={tmp_path}")
    job = programs.trainband("run", *flags)
    assert digest_of(job)[1] == 90
    assert f"resumes from {tmp_path}/step-000000000060 (global step 60)" in job.stderr
    for step in (60, 90):
        line = rf"^\[evaluator:0\] trainband: evaluator: loss .*, accuracy .* on 500 examples at global step {step}$"
        assert re.search(line, job.stderr, re.M), job.output
    assert list((tmp_path / "eval").glob("events.out.tfevents.*"))


def test_a_job_that_is_killed_goes_on_from_its_last_checkpoint(programs: Programs, tmp_path: Path) -> None:
    whole = digest_of(run(programs, None, "--steps=100", ps=2))
    job = run(programs, tmp_path, "--steps=100", "--step_s=0.05", "--save_steps=10", "--go=never", ps=2)
    until(lambda: len(steps_in(tmp_path)) >= 1, "a checkpoint")
    for pid in programs.processes():
        with contextlib.suppress(ProcessLookupError):  # one ends the others
            os.kill(pid, signal.SIGKILL)
    job.wait()
    left = steps_in(tmp_path)
    assert left[-1] < 100
    again = run(programs, tmp_path, "--steps=100", ps=1)
    assert digest_of(again) == whole, "the same bits, also on another number of ps"
    assert f"(global step {left[-1]})" in again.stderr
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".step")], "what was half-written is swept"
    assert not (tmp_path / "LOCK").exists()
    complete = run(programs, tmp_path, "--steps=100", ps=1)
    assert digest_of(complete) == whole
    assert "worker:0 trained on 0 examples" in complete.stdout


LEAVES = re.compile(r"SIGTERM asked this task to end; it leaves the job at global step ([\d,]+)")


def test_sigterm_lets_a_task_finish_its_step_save_and_leave(programs: Programs, tmp_path: Path) -> None:
    alone = run(programs, tmp_path, "--steps=100000", "--step_s=0.02", "--save_steps=100000", ps=0)
    alone.wait_for("^training")
    alone.send(signal.SIGTERM)
    assert alone.wait() == 128 + signal.SIGTERM, alone.output
    alone.expect_no_noise()
    left = LEAVES.search(alone.stderr)
    assert left, alone.output
    assert steps_in(tmp_path) == [int(left[1].replace(",", ""))]


@pytest.mark.smoke
def test_ctrl_c_of_a_job_saves_it(programs: Programs, tmp_path: Path) -> None:
    job = run(programs, tmp_path, "--steps=100000", "--step_s=0.02", "--save_steps=100000", ps=2)
    job.wait_for(r"^\[worker:0\] training")
    job.wait_for(r"^\[worker:1\] training")
    job.interrupt()
    assert job.wait() == 130, job.output
    job.expect_no_noise()
    newest = CheckpointDirectory(tmp_path, pytest.fail).newest()
    assert newest is not None, job.output
    assert newest.global_step > 0
    assert len({part.version for part in newest.manifest.parts}) == 1, "under Sync it is one moment"
    assert not (tmp_path / "LOCK").exists()


@pytest.mark.slow  # in `make test`, tests/checkpoint/test_lock.py
def test_two_jobs_on_one_directory(programs: Programs, tmp_path: Path) -> None:
    first = run(programs, tmp_path, "--steps=100000", "--step_s=0.02")
    first.wait_for(r"^\[worker:0\] training")
    second = run(programs, tmp_path, "--steps=10", ps=0)
    second.fail(rf"^error: .*{re.escape(str(tmp_path))}.*worker:0 \(process \d+ on ")
    first.interrupt()
    assert first.wait() == 130


@pytest.mark.slow  # in `make test`, tests/data/test_leases.py and the simulation
def test_shared_data_of_a_worker_that_is_killed_goes_to_the_living(
    programs: Programs, tmp_path: Path, ports: tuple[str, ...]
) -> None:
    environ, go = {"ps": [ports[0]], "worker": list(ports[1:4])}, tmp_path / "go"
    tasks = {
        f"{job}:{i}": programs.python(
            f"{job}:{i}",
            str(SCRIPT),
            "--shared",
            "--rule=async",
            "--step_s=0.2",
            f"--go={go}",
            f"--dir={tmp_path}",
            environ={"TF_CONFIG": _config(environ, job, i)},
        )
        for job, addresses in environ.items()
        for i in range(len(addresses))
    }
    tasks["worker:2"].wait_for("^training")
    tasks["worker:2"].send(signal.SIGKILL)
    assert tasks["worker:2"].wait() == -signal.SIGKILL
    go.touch()
    trained = 0
    for name in ("worker:0", "worker:1"):
        found = re.search(r"trained on (\d+) examples\nrepeated (\d+)", tasks[name].succeed())
        assert found, tasks[name].output
        trained += int(found[1])
    tasks["ps:0"].succeed()
    # What the dead worker had trained on for certain is not visited again; the rest of what it held is.
    assert 2 * 2000 - 2000 < trained <= 2 * 2000


def test_an_error_of_the_data_reaches_the_user_with_the_workers_name(programs: Programs, tmp_path: Path) -> None:
    job = run(programs, tmp_path, "--steps=1000", "--raises_at=7")
    assert job.wait() != 0
    assert "the disk with the pictures is gone" in job.stderr
    assert "raised by the data of worker:1, batch 7" in job.stderr


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that has room for a lock and not for a checkpoint."""
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("a small file system can be mounted by root alone")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine lets nobody mount a file system")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk(programs: Programs, full_disk: Path) -> None:
    job = run(programs, full_disk, "--steps=50")
    assert job.wait() != 0
    assert "WARNING: could not write a checkpoint; training continues" in job.stderr
    assert re.search("error: the training is done, but its last checkpoint is not in .* are free", job.stderr)
    assert re.search(r"^\[worker:1\] worker:1 trained on \d+ examples$", job.stdout, re.M)


def _config(cluster: dict[str, list[str]], job: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
