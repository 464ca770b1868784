"""Models, batches and data files that cannot be trained with, in a launched cluster of real processes."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
from tests.programs import LINE, MNIST, Programs

# the fault, what the user reads
FAULTS: list[tuple[str, str]] = [
    ("shape changes", r"batch 20: array 0 is float32\[7, 8\], but was float32\[16, 8\] in the first batch; drop"),
    ("loss is no scalar", r"loss\(\) must return a floating-point scalar, got float32\[16\]; take the mean over"),
    ("duplicate name", r"two variables have the name 'dense/kernel': .* and .* of the params; rename one"),
    ("unusable name", r"would be named '', which cannot be used: .*; rename the key"),
    ("integer params", r"\(steps\) has dtype int32, which gradients cannot train"),
    ("init fails", "the file with the first values is not there"),
    ("always infinite", r"100 gradients in a row were not finite; the last: worker:0: a ps .*learning"),
]

FOUND_BEFORE_JOINING = ("duplicate name", "unusable name", "integer params")
"""In the same place whether the process stands alone or in a cluster."""


SLOW = {"shape changes", "init fails"}
"""In `make test`, these are seen in one process, and by a chief that fails before it has initialised."""


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(*one, marks=pytest.mark.slow if one[0] in SLOW else ())
        for one in FAULTS
        if one[0] not in (*FOUND_BEFORE_JOINING, "loss is no scalar")
    ],
)
def test_a_fault_ends_the_job_with_one_clear_line(fault: str, message: str, programs: Programs) -> None:
    job = programs.trainband(
        "run", "--ps=1", "--workers=1", str(LINE), f"--fault={fault}", "--train_steps=100000", "--wait=lease_s=3"
    )
    errors = job.fail(rf"^\[worker:0\] error: .*{message}")
    assert "── worker:0 failed: exit code 1 ──" in errors
    assert "trainband: worker:0 failed (exit code 1); stopping the others: ps:0\n" in errors


def test_the_same_words_in_one_process(programs: Programs) -> None:
    faults = ["loss is no scalar", "shape changes", *FOUND_BEFORE_JOINING]
    started = {fault: programs.python(fault, str(LINE), f"--fault={fault}", "--train_steps=1000") for fault in faults}
    for fault, alone in started.items():
        assert alone.fail(rf"^error: .*{dict(FAULTS)[fault]}").count("error:") == 1


def test_gradients_that_are_infinite_at_times_are_refused_and_counted(
    programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    tasks = programs.cluster(
        "--fault=infinite at times",
        "--of=worker:1",
        "--train_steps=1000",
        f"--go={go}",
        ps=ports[:1],
        workers=ports[1:3],
    )
    tasks["worker:1"].wait_for("^training$")
    go.touch()
    for name, task in tasks.items():
        output = task.succeed()
        if name != "ps:0":
            assert f"{name} is done at global step 1000, refused " in output
            assert ("refused 0" in output) == (name == "worker:0")
    assert "evaluation: loss 0." in tasks["worker:0"].stdout  # the params have stayed finite
    said = tasks["ps:0"].wait_for(r"refused a gradient of (\S+) that is not finite \(push \d+, .* in (.*); \d+ so far")
    assert said[1] == "worker:1"
    assert "kernel" in said[2]
    tasks["worker:1"].wait_for("^trainband: worker:1: a ps refused a gradient .*; the params are unchanged")


MISMATCHES: list[tuple[list[str], str]] = [
    (["--learning_rate=0.2"], "optimizer"),
    (["--momentum=0.9"], "optimizer"),
    (
        ["--fault=another model"],
        r"the first variable that differs is bias: the chief has .*\[3\], worker:1 has .*\[4\]",
    ),
]


@pytest.mark.smoke
def test_a_worker_with_another_model_or_optimizer(programs: Programs, ports: tuple[str, ...]) -> None:
    ps = programs.task("ps:0", ps=ports[:1], workers=ports[1:3])
    chief = programs.task("worker:0", "--pause_s=0.01", ps=ports[:1], workers=ports[1:3])
    chief.wait_for("^training$")
    for flags, message in MISMATCHES:
        other = programs.task("worker:1", *flags, ps=ports[:1], workers=ports[1:3])
        other.fail(rf"^error: worker:1 cannot join this job: .*{message}")
    for task in (chief, ps):
        task.interrupt()
        assert task.wait() == 130


def idx(magic: int, *shape: int, body: bytes) -> bytes:
    return struct.pack(f">{1 + len(shape)}I", magic, *shape) + body


def test_data_files_that_are_missing_or_truncated(programs: Programs, tmp_path: Path) -> None:
    empty, short, wrong = tmp_path / "empty", tmp_path / "short", tmp_path / "wrong"
    for directory in (empty, short, wrong):
        directory.mkdir()
    images = idx(2051, 4, 28, 28, body=bytes(4 * 784))
    labels = idx(2049, 4, body=bytes(4))
    for part in ("train", "t10k"):
        (short / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images)[:-20])
        (short / f"{part}-labels-idx1-ubyte").write_bytes(labels)
        (wrong / f"{part}-images-idx3-ubyte").write_bytes(labels)
        (wrong / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    started = {
        directory: programs.python(f"mnist.py {directory.name}", str(MNIST), f"--data_dir={directory}")
        for directory in (tmp_path / "nowhere", empty, short, wrong)
    }
    for directory, program in started.items():
        errors = program.fail(rf"^error: .*{directory}")
        assert errors.count("error:") == 1
