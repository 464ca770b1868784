"""`fit` in real processes: a ps and two workers, and two workers in step without a ps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import ROOT, Program, Programs

SCRIPT = ROOT / "tests" / "cluster_keras" / "fitting.py"
EXAMPLE = ROOT / "examples" / "keras_digits.py"
TOLERANCE = 2e-5
"""Of weights of a size about 1, after 8 updates in float32, whose sums are made of two parts."""

DEADLINE_S = 240.0
"""For a job, of which each process compiles for seconds, on cores that others use too."""

ON_PS = ("--ps", "1", "--workers", "2")
IN_STEP = ("--ps", "0", "--workers", "2")


def job(programs: Programs, *arguments: str) -> Program:
    """`trainband run`, with the script's flags after its own."""
    return programs.trainband("run", *arguments)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Plain Keras on the union batch, by model."""
    found = {}
    programs = Programs()
    for model in ("dense", "frozen", "scheduled"):
        out = tmp_path_factory.mktemp("plain") / "plain.npz"
        flags = ("--strategy=plain", "--batch_size=32", f"--model={model}", f"--out={out}")
        programs.python("plain", str(SCRIPT), *flags).succeed(DEADLINE_S)
        found[model] = values(out)
    return found


def values(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.parametrize(
    ("cluster", "strategy", "model"),
    [
        (ON_PS, "sync", "dense"),
        (IN_STEP, "mirrored", "frozen"),
        (ON_PS, "sync", "scheduled"),
        (IN_STEP, "mirrored", "scheduled"),
    ],
    ids=["sync", "mirrored", "sync-scheduled", "mirrored-scheduled"],
)
def test_two_workers_are_plain_keras_on_the_union_batch(
    cluster: tuple[str, ...], strategy: str, model: str, plain: Any, programs: Programs, tmp_path: Path
) -> None:
    out = tmp_path / "out.npz"
    run = job(programs, *cluster, str(SCRIPT), "--", f"--strategy={strategy}", f"--model={model}", f"--out={out}")
    run.succeed(DEADLINE_S)
    got = values(out)
    assert set(got) == set(plain[model])
    for name, expected in plain[model].items():
        # Of the losses, the chief's own half of each batch.
        tolerance = 0.5 if name == "loss" and strategy == "sync" else TOLERANCE
        np.testing.assert_allclose(got[name], expected, rtol=tolerance, atol=tolerance, err_msg=name)


def test_asynchronous_workers_with_batch_normalisation_learn(programs: Programs) -> None:
    run = job(programs, *ON_PS, str(SCRIPT), "--", "--strategy=async", "--model=normal", "--epochs=30")
    accuracy = re.search(r"accuracy ([\d.]+), loss", run.succeed(DEADLINE_S))
    assert accuracy, run.output
    assert float(accuracy[1]) > 0.9


def test_frozen_values_of_its_own_are_refused(programs: Programs) -> None:
    run = job(programs, *ON_PS, str(SCRIPT), "--", "--strategy=async", "--model=frozen", "--seeds")
    run.fail(
        r"have other values here than where the job began.*keras.utils.set_random_seed.*load the same file on all",
        DEADLINE_S,
    )


def test_a_worker_that_is_killed_comes_back(programs: Programs, tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    run = job(
        programs, *ON_PS, "--restarts", "1", str(SCRIPT), "--", "--strategy=async", "--epochs=30", f"--kill={mark}"
    )
    run.succeed(DEADLINE_S)
    assert mark.exists()


@pytest.mark.parametrize("cluster", [ON_PS, IN_STEP], ids=["a ps and two workers", "two mirrored workers"])
def test_the_example(cluster: tuple[str, ...], programs: Programs) -> None:
    run = job(programs, *cluster, str(EXAMPLE))
    accuracy = re.search(r"held out: loss [\d.]+, accuracy ([\d.]+)$", run.succeed(DEADLINE_S), re.M)
    assert accuracy, run.output
    assert float(accuracy[1]) >= 0.97
