"""`fit` in real processes: a ps and two workers, and two workers in lockstep without a ps."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
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
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Plain Keras on the union batch, by model."""

    @functools.cache
    def found(model: str) -> Any:
        programs, out = Programs(), tmp_path_factory.mktemp("plain") / "plain.npz"
        flags = ("--strategy=plain", "--batch_size=32", f"--model={model}", f"--out={out}")
        programs.python("plain", str(SCRIPT), *flags).succeed(DEADLINE_S)
        return values(out)

    return found


def values(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.parametrize(
    ("cluster", "strategy", "model"),
    [
        pytest.param(ON_PS, "sync", "dense", marks=pytest.mark.slow),
        (IN_STEP, "mirrored", "frozen"),
        (ON_PS, "sync", "scheduled"),
        pytest.param(IN_STEP, "mirrored", "scheduled", marks=pytest.mark.slow),
    ],
    ids=["sync", "mirrored", "sync-scheduled", "mirrored-scheduled"],
)
def test_two_workers_are_plain_keras_on_the_union_batch(
    cluster: tuple[str, ...], strategy: str, model: str, plain: Callable[[str], Any], programs: Programs, tmp_path: Path
) -> None:
    out = tmp_path / "out.npz"
    run = job(programs, *cluster, str(SCRIPT), "--", f"--strategy={strategy}", f"--model={model}", f"--out={out}")
    run.succeed(DEADLINE_S)
    got = values(out)
    on_one_device = plain(model)
    assert set(got) == set(on_one_device)
    for name, expected in on_one_device.items():
        # Of the metrics in training, the chief's own half of each batch.
        tolerance = 0.5 if name in ("loss", "accuracy") and strategy == "sync" else TOLERANCE
        np.testing.assert_allclose(got[name], expected, rtol=tolerance, atol=tolerance, err_msg=name)
    if strategy == "mirrored":  # every worker's script gets the same history, with the validation
        histories = re.findall(r"history (.*)", run.output)
        assert len(histories) == 2
        assert len(set(histories)) == 1, histories
        assert "val_loss" in histories[0]


@pytest.mark.slow
def test_asynchronous_workers_with_batch_normalisation_learn(programs: Programs) -> None:
    run = job(programs, *ON_PS, str(SCRIPT), "--", "--strategy=async", "--model=normal", "--epochs=30")
    accuracy = re.search(r"accuracy ([\d.]+), loss", run.succeed(DEADLINE_S))
    assert accuracy, run.output
    assert float(accuracy[1]) > 0.9


@pytest.mark.smoke
def test_frozen_values_of_its_own_are_refused(programs: Programs) -> None:
    run = job(programs, *ON_PS, str(SCRIPT), "--", "--strategy=async", "--model=frozen", "--seeds")
    run.fail(
        r"have other values here than on the task that began the job.*keras.utils.set_random_seed.*load the same file",
        DEADLINE_S,
    )


@pytest.mark.slow
def test_a_worker_that_is_killed_comes_back(programs: Programs, tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    run = job(
        programs, *ON_PS, "--restarts", "1", str(SCRIPT), "--", "--strategy=async", "--epochs=30", f"--kill={mark}"
    )
    run.succeed(DEADLINE_S)
    assert mark.exists()


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(ON_PS, id="a ps and two workers", marks=pytest.mark.slow),
        pytest.param(IN_STEP, id="two mirrored workers", marks=pytest.mark.slow),
    ],
)
def test_the_example(cluster: tuple[str, ...], programs: Programs) -> None:
    run = job(programs, *cluster, str(EXAMPLE))
    accuracy = re.search(r"held out: loss [\d.]+, accuracy ([\d.]+)$", run.succeed(DEADLINE_S), re.M)
    assert accuracy, run.output
    assert float(accuracy[1]) >= 0.97
