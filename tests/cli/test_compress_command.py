"""`trainband compress`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import optax
import pytest
from click.testing import CliRunner, Result

import trainband
from trainband.cli.main import cli
from trainband.compress import load
from trainband.errors import TrainbandError

PROGRAM = """
def predict(params, batch):
    return batch @ params["kernel"]
"""
RANDOM = np.random.default_rng(0)
KERNEL = RANDOM.normal(size=(32, 10)).astype(np.float32)
IMAGES = RANDOM.normal(size=(20, 32)).astype(np.float32)


pytestmark = pytest.mark.usefixtures("imports_a_program")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A program, a checkpoint, and data."""
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    trainer = trainband.Trainer(
        init=lambda _: {"kernel": KERNEL},
        loss=lambda params, batch: (batch @ params["kernel"]).mean(),
        optimizer=optax.sgd(0.0),
        console=False,
    )
    trainer.save(tmp_path / "runs")
    np.savez(tmp_path / "data.npz", images=IMAGES, labels=(IMAGES @ KERNEL).argmax(-1))
    np.savez(tmp_path / "other.npz", images=IMAGES[:, :31])
    np.savez(tmp_path / "empty.npz", images=IMAGES[:0])
    return tmp_path


def run(home: Path, *arguments: str, model: bool = True) -> Result:
    program = ["--model", f"{home / 'program.py'}:predict"] if model else []
    return CliRunner().invoke(cli, ["compress", str(home / "runs"), *program, "--out", str(home / "small"), *arguments])


def test_the_report_says_size_accuracy_and_the_worst_tensor(home: Path) -> None:
    data = str(home / "data.npz")
    result = run(home, "--int8", "--calibrate", data, "--evaluate", data)
    assert result.exit_code == 0, result.output
    table = " ".join(result.stdout.split())
    assert "params/kernel │ int8 │ 1,280 │ 360" in table
    assert "1,280 -> 360 bytes, 3.6 times smaller; accuracy 1.0000 -> " in table
    assert "worst tensor: params/kernel" in table
    report = json.loads((home / "small" / "compressed.json").read_text(encoding="utf-8"))["report"]
    assert report["quality"]["examples"] == 20
    assert list(load(home / "small").ranges) == ["params/kernel"]
    program = f"{home / 'program.py'}:predict"
    given = ["--model", program, "--example", str(home / "images.npy")]
    np.save(home / "images.npy", IMAGES)
    exported = CliRunner().invoke(cli, ["export", str(home / "small"), str(home / "exported"), *given])
    assert exported.exit_code == 0, exported.output


def test_weights_alone_need_no_program(home: Path) -> None:
    result = run(home, "--half", "--prune", "0.5", model=False)
    assert result.exit_code == 0, result.output
    assert "float16, 50% zeros" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "model", "words"),
    [
        ((), True, "say how to compress"),
        (("--int8", "--calibrate", "other.npz", "--input", "f32[batch,32]"), True, "does not fit the program"),
        (("--int8", "--calibrate", "empty.npz", "--input", "f32[batch,32]"), True, "the calibration set is empty"),
        (("--int8", "--evaluate", "other.npz", "--input", "f32[batch,31]"), True, "cannot be traced"),
        (("--int8", "--evaluate", "data.npz"), False, "give --model program.py:predict"),
        (("--int8", "--only", "head"), True, "'head' matches no tensor"),
    ],
)
def test_bad_arguments(home: Path, arguments: tuple[str, ...], model: bool, words: str) -> None:
    files = [str(home / one) if one.endswith(".npz") else one for one in arguments]
    if model and "--input" not in files:
        files += ["--input", "f32[batch,32]"]
    result = run(home, *files, model=model)
    assert isinstance(result.exception, TrainbandError), result.output
    assert words in str(result.exception)
    assert not (home / "small").exists()
