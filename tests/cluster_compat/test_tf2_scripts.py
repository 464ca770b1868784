"""The scripts of examples/tf2 give what TensorFlow gave for them, in one process and on clusters."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.compat_tf2.golden.make import GOLDEN, RUNS, SCRIPTS, Run, tasks_of
from tests.programs import Program, Programs

EXPECTED: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text())
DEADLINE_S = 180.0
TOLERANCE = 2e-3
"""Relative, of numbers; accuracies may differ by two examples in a hundred."""
TOLERANCES = {
    "vae_train_step": 0.3,  # its noise is JAX's
    "mixed_precision": 0.03,  # in 16 bits
    "gan_train_step": 0.02,
    "dcgan_loop": 0.02,
    "lstm_text": 0.02,  # TensorFlow clips the rows of an embedding's gradient before it adds up those of one word
    "saving": 0.06,  # of a model from a directory, TensorFlow does not restore the optimizer's state
}
WITHOUT_ORDER = {
    "keras_parameter_server": {"loss": 0.45, "accuracy": 0.9},
    "coordinator": {"loss": 0.1, "right": 0.95},
}
"""Workers that do not wait for each other: what their losses are to stay below, and their accuracies above."""
QUICK = {"two_replicas", "input_context@2 worker"}
"""The others are slow: in `make test`, `tests/compat_tf2` compares what each operation and function gives."""


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, id=run.name, marks=() if run.name in QUICK else pytest.mark.slow) for run in RUNS],
)
def test_a_script_gives_what_tensorflow_gives(programs: Programs, tmp_path: Path, run: Run) -> None:
    first = start(programs, run, tmp_path)[0]
    assert first.wait(DEADLINE_S) == 0, first.output
    results = re.findall(r"^RESULT (.*)$", first.stdout, re.MULTILINE)
    assert results, first.output
    result = json.loads(results[-1])
    if run.script in WITHOUT_ORDER:
        for name, limit in WITHOUT_ORDER[run.script].items():
            assert result[name] < limit if name == "loss" else result[name] > limit, result
        return
    expected = EXPECTED[run.name]
    if "not run" not in expected:
        assert result == {name: near(name, value, run) for name, value in expected.items()}


def near(name: str, value: Any, run: Run) -> Any:
    """What a result of this name may be."""
    tolerance = TOLERANCES.get(run.script, TOLERANCE)
    several = value if isinstance(value, list) else [value]
    if all(isinstance(one, float) for one in several):
        return pytest.approx(value, rel=tolerance, abs=0.02 if "accuracy" in name else 1e-4)
    return value


def start(programs: Programs, run: Run, directory: Path) -> list[Program]:
    """Starts every task of a run, by hand as its users do; the first gives the result."""
    arguments = [*run.arguments, *([str(directory)] if run.cluster and not run.arguments else [])]
    command = (sys.executable, "-m", "trainband.compat", str(SCRIPTS / f"{run.script}.py"), *arguments)
    return [
        programs.start(task, *command, environ={"JAX_PLATFORMS": "cpu", **environ}, cwd=directory)
        for task, environ in tasks_of(run.cluster).items()
    ]


def test_every_script_is_run() -> None:
    assert {run.script for run in RUNS} == {path.stem for path in SCRIPTS.glob("*.py")}
    assert {run.name for run in RUNS} == EXPECTED.keys()
