"""A job that is stopped, in whatever way, and goes on: on the same tasks, on others, or not at all."""

from __future__ import annotations

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


# ps and workers of the run that is stopped -> those of the run that goes on: in the same bits
SAME_BITS: list[tuple[tuple[int, int], tuple[int, int]]] = [
    ((2, 2), (2, 2)),
    ((1, 2), (3, 2)),
    ((2, 2), (1, 2)),
    ((0, 1), (0, 1)),
]


@pytest.mark.parametrize(("before", "after"), SAME_BITS)
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    before: tuple[int, int], after: tuple[int, int], programs: Programs, tmp_path: Path
) -> None:
    whole = digest_of(run(programs, None, "--steps=100", ps=before[0], workers=before[1]))
    first = digest_of(run(programs, tmp_path, "--steps=45", ps=before[0], workers=before[1]))
    second = run(programs, tmp_path, "--steps=100", ps=after[0], workers=after[1])
    assert digest_of(second) == whole
    assert first[1] == 45
    assert f"goes on from {tmp_path}/step-000000000045 (global step 45)" in second.stderr
    assert steps_in(tmp_path)[-1] == 100


def test_from_a_cluster_to_one_process_and_back(programs: Programs, tmp_path: Path) -> None:
    digest_of(run(programs, tmp_path, "--steps=40", "--rule=async", ps=2, workers=2))
    assert digest_of(run(programs, tmp_path, "--steps=60", ps=0))[1] == 60
    last = run(programs, tmp_path, "--steps=90", "--rule=bounded", ps=2, workers=3)
    assert digest_of(last)[1] == 90
    assert "step-000000000060 (global step 60)" in last.stderr


def test_a_job_that_is_killed_goes_on_from_its_last_checkpoint(programs: Programs, tmp_path: Path) -> None:
    whole = digest_of(run(programs, None, "--steps=100", ps=2))
    job = run(programs, tmp_path, "--steps=100", "--step_s=0.05", "--save_steps=10", ps=2)
    until(lambda: len(steps_in(tmp_path)) >= 3, "the third checkpoint")
    for pid in programs.processes():
        os.kill(pid, signal.SIGKILL)
    job.wait()
    left = steps_in(tmp_path)
    assert left[-1] < 100
    again = run(programs, tmp_path, "--steps=100", ps=2)
    assert digest_of(again) == whole
    assert f"(global step {left[-1]})" in again.stderr
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".step")], "what was half-written is swept"
    assert not (tmp_path / "LOCK").exists()


def test_a_complete_job_that_is_started_again_makes_no_step(programs: Programs, tmp_path: Path) -> None:
    first = digest_of(run(programs, tmp_path, "--steps=30"))
    again = run(programs, tmp_path, "--steps=30")
    assert digest_of(again) == first
    assert "worker:0 trained on 0 examples" in again.stdout


def test_two_jobs_on_one_directory(programs: Programs, tmp_path: Path) -> None:
    first = run(programs, tmp_path, "--steps=100000", "--step_s=0.02")
    first.wait_for(r"^\[worker:0\] training")
    second = run(programs, tmp_path, "--steps=10", ps=0)
    second.fail(rf"^error: .*{re.escape(str(tmp_path))}.*worker:0 \(process \d+ on ")
    first.interrupt()
    assert first.wait() == 130


def test_a_checkpoint_of_another_model(programs: Programs, tmp_path: Path) -> None:
    digest_of(run(programs, tmp_path, "--steps=20"))
    other = run(programs, tmp_path, "--steps=40", "--hidden=3")
    other.fail(r"worker:0 failed")
    assert "params/extra float32[3]" in other.stderr


def test_a_damaged_part_is_named_and_the_checkpoint_before_it_is_used(programs: Programs, tmp_path: Path) -> None:
    digest_of(run(programs, tmp_path, "--steps=60", "--save_steps=20", ps=2))
    newest = steps_in(tmp_path)[-1]
    part = tmp_path / f"step-{newest:012}" / "part-00001-of-00002.safetensors"
    data = bytearray(part.read_bytes())
    data[-5] ^= 1
    part.write_bytes(data)
    again = run(programs, tmp_path, "--steps=80", ps=2)
    assert digest_of(again)[1] == 80
    assert "part-00001-of-00002.safetensors" in again.stderr
    assert re.search(r"goes on from .*/step-0+(20|40) ", again.stderr)


def test_an_evaluator_beside_the_job(programs: Programs, tmp_path: Path) -> None:
    flags = ("--ps=1", "--workers=2", "--evaluator", str(SCRIPT), "--steps=60", f"--dir={tmp_path}")
    job = programs.trainband("run", *flags)
    digest_of(job)
    assert re.search(
        r"^\[evaluator:0\] trainband: evaluator: loss [\d.]+, accuracy [\d.]+ on 500 examples at global step 60$",
        job.stderr,
        re.M,
    )
    assert list((tmp_path / "eval").glob("events.out.tfevents.*"))


def test_shared_data_visits_every_example_once_an_epoch(programs: Programs, tmp_path: Path) -> None:
    job = run(programs, tmp_path, "--shared", "--rule=async", workers=3)
    output = job.succeed()
    trained = [int(n) for n in re.findall(r"trained on (\d+) examples", output)]
    assert sum(trained) == 2 * 2000, job.output
    assert set(re.findall(r"repeated (\d+)", output)) == {"0"}


def test_shared_data_of_a_worker_that_is_killed_goes_to_the_living(
    programs: Programs, tmp_path: Path, ports: tuple[str, ...]
) -> None:
    environ = {"ps": [ports[0]], "worker": list(ports[1:4])}
    tasks = {
        f"{job}:{i}": programs.python(
            f"{job}:{i}",
            str(SCRIPT),
            "--shared",
            "--rule=async",
            "--step_s=0.02",
            f"--dir={tmp_path}",
            environ={"TF_CONFIG": _config(environ, job, i)},
        )
        for job, addresses in environ.items()
        for i in range(len(addresses))
    }
    tasks["worker:2"].wait_for("^training")
    tasks["worker:2"].send(signal.SIGKILL)
    assert tasks["worker:2"].wait() == -signal.SIGKILL
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
    assert "WARNING: no checkpoint could be written; the training goes on" in job.stderr
    assert re.search("error: the training is done, but its last checkpoint is not in .* are free", job.stderr)
    assert re.search(r"^\[worker:1\] worker:1 trained on \d+ examples$", job.stdout, re.M)


def _config(cluster: dict[str, list[str]], job: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
