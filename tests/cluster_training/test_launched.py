"""`trainband run` on real data, from the command to the last line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.programs import MNIST, Programs

STEPS = 600
PNG = b"\x89PNG\r\n\x1a\n"

# options of `trainband run`, the chief, how many train
CLUSTERS = [
    pytest.param(["--ps", "1", "--workers", "2"], "worker:0", 2, marks=pytest.mark.slow),
    pytest.param(["--ps", "2", "--workers", "3"], "worker:0", 3, marks=pytest.mark.slow),
    (["--ps", "1", "--workers", "1", "--chief"], "chief:0", 2),
]


@pytest.mark.parametrize(("options", "chief", "trainers"), CLUSTERS)
def test_a_launched_cluster_trains_the_example(
    options: list[str], chief: str, trainers: int, programs: Programs, tmp_path: Path
) -> None:
    plot = tmp_path / "new" / "curve.png"
    job = programs.trainband("run", *options, str(MNIST), "--", f"--train_steps={STEPS}", f"--plot={plot}")
    output = job.succeed()
    held_out = re.search(
        rf"^\[{chief}\] held out: loss [\d.]+, accuracy ([\d.]+) on 355 examples at global step (\d+)$", output, re.M
    )
    assert held_out, job.output
    assert float(held_out[1]) > 0.94
    assert int(held_out[2]) == STEPS
    shares = re.findall(r": (\d+) of 600 steps", output)
    assert len(shares) == trainers
    # The last push of a worker may come after the last update, and is dropped then.
    assert STEPS <= sum(map(int, shares)) <= STEPS + trainers
    assert f"[{chief}] training curve: {plot}\n" in output
    assert plot.read_bytes().startswith(PNG)
    assert "[ps:0] trainband: ps:0 ends: the job is complete" in job.stderr
