"""Models of Flax and Equinox on clusters of real processes."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from tests.cluster_flax.libraries import STEPS, TRAINERS, batches, numbers
from tests.programs import ROOT, Programs

import trainband

SCRIPT = ("-m", "tests.cluster_flax.libraries")
CLUSTERS = {
    "sync": ("--ps=1", "--workers=2"),
    "async": ("--ps=1", "--workers=2"),
    "mirrored": ("--ps=0", "--workers=2"),
}

# library, strategy, how near what it trains to is to one device on the batches of all; None: each run is another one
CASES = [
    pytest.param(
        "nnx", "mirrored", 5e-6, marks=pytest.mark.smoke
    ),  # one program on the batches of all: the same dropout, but for rounding
    pytest.param("nnx", "async", None, marks=pytest.mark.slow),
    pytest.param("linen", "mirrored", 5e-6, marks=pytest.mark.slow),
    ("linen", "sync", None),  # each worker draws its own dropout, and has the statistics of its own part
    pytest.param("equinox", "mirrored", 5e-6, marks=pytest.mark.slow),
    pytest.param("equinox", "sync", 5e-6, marks=pytest.mark.slow),
]


@cache
def one_device(library: str) -> tuple[list[float], float, float]:
    """(what one device trains to, its evaluation at the beginning, and at the end)."""
    strategy = trainband.OneDevice("cpu")
    trainer = TRAINERS[library](optimizer=optax.adam(1e-2), strategy=strategy, console=False)
    before = trainer.evaluate(batches()).loss
    trainer.fit(batches(), steps=STEPS)
    return numbers(trainer), before, trainer.evaluate(batches()).loss


@pytest.mark.parametrize(("library", "strategy", "tolerance"), CASES)
def test_they_train(library: str, strategy: str, tolerance: float | None, programs: Programs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = (f"--library={library}", f"--strategy={strategy}", f"--out={out}")
    programs.trainband("run", *CLUSTERS[strategy], *SCRIPT, *flags).succeed()
    found: Any = json.loads(out.read_text(encoding="utf-8"))
    expected, before, after = one_device(library)
    assert found["step"] == STEPS
    assert len(found["numbers"]) == len(expected)
    if tolerance is not None:
        np.testing.assert_allclose(found["numbers"], expected, rtol=tolerance, atol=tolerance)
    assert found["loss"] < before - 0.3 * (before - after)


# options of `trainband run`, the example's own
DIGITS = [
    pytest.param(["--ps=1", "--workers=2"], [], marks=pytest.mark.slow),
    pytest.param(["--ps=0", "--workers=2"], ["--strategy=mirrored"], marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("options", "flags"), DIGITS)
def test_the_digits_are_learned(options: list[str], flags: list[str], programs: Programs) -> None:
    job = programs.trainband("run", *options, str(ROOT / "examples" / "flax_digits.py"), "--", *flags)
    output = job.succeed(120.0)
    held_out = re.search(r"^\[worker:0\] held out: loss [\d.]+, accuracy ([\d.]+) on 355 examples", output, re.M)
    assert held_out, job.output
    assert float(held_out[1]) >= 0.97
    assert re.search(r"^\[worker:0\] the first digits are \[5 0 \d 8 7\]$", output, re.M), job.output
