"""`trainband export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from click.testing import CliRunner, Result

import trainband
from trainband.cli.main import cli
from trainband.errors import TrainbandError
from trainband.export import load

PROGRAM = """
import numpy as np
import trainband

def predict(params, batch):
    return batch @ params["kernel"]

with_example = trainband.Predictor(predict, example=np.ones((3, 4), np.float32))
number = 3
"""


pytestmark = pytest.mark.usefixtures("imports_a_program")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A program, and checkpoints of two steps."""
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    trainer = trainband.Trainer(
        init=lambda _: {"kernel": np.ones((4, 2), np.float32)},
        loss=lambda params, batch: (batch @ params["kernel"]).mean(),
        optimizer=optax.sgd(1.0),
        console=False,
    )
    trainer.fit([np.ones((3, 4), np.float32)], steps=2, checkpoint_dir=tmp_path / "runs", save_steps=1)
    return tmp_path


def export(home: Path, *arguments: str, model: str = "with_example") -> Result:
    program = f"{home / 'program.py'}:{model}"
    return CliRunner().invoke(cli, ["export", str(home / "runs"), str(home / "out"), "--model", program, *arguments])


@pytest.mark.parametrize("given", ["predictor", "example", "input"])
def test_the_newest_checkpoint_is_exported(home: Path, given: str) -> None:
    np.save(home / "example.npy", np.ones((3, 4), np.float32))
    match given:
        case "predictor":
            result = export(home)
        case "example":
            result = export(home, "--example", str(home / "example.npy"), model="predict")
        case _:
            result = export(home, "--input", "f32[batch,4]", model="predict")
    assert result.exit_code == 0, result.output
    assert "exported predict to" in result.stdout
    assert "largest difference from predict on" in result.stdout
    artifact = load(home / "out")
    assert artifact.manifest.global_step == 2
    found = artifact.compiled()({"input": np.ones((1, 4), np.float32)})["output"]
    np.testing.assert_allclose(found, [[0.0, 0.0]], atol=1e-6)  # two steps of 0.5 each


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        ("nothing", (), "program.py has no nothing"),
        ("number", (), "number is 3, not a function, a Predictor"),
        ("predict", (), "has no example: give a batch"),
        ("predict", ("--input", "f32[batch,5]"), "predict cannot be traced (program.py:6)"),
    ],
)
def test_what_cannot_be_exported_is_said(home: Path, model: str, arguments: Any, words: str) -> None:
    result = export(home, *arguments, model=model)
    assert isinstance(result.exception, TrainbandError)
    assert result.exit_code == 1
    assert words in str(result.exception)
    assert not (home / "out").exists()
