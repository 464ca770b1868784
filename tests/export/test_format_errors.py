"""What a format cannot hold, and what is missing for it, is said by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.export.converters import options_for

import trainband
from trainband.errors import ModelError, YourError
from trainband.export import Options, export_program
from trainband.export.converters import environment
from trainband.model.inference import InferenceProgram

WEIGHTS = {"params/kernel": np.eye(4, dtype=np.float32)}
EXAMPLE = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)


def drawing(params: Any, batch: Any) -> Any:
    noise = jax.random.normal(jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)), (4,))
    return batch @ params["kernel"] + noise


def sorting(params: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch @ params["kernel"])
    return jnp.sort(hidden, axis=-1) * 2


def program(function: Any) -> InferenceProgram:
    return trainband.Predictor(function).program(WEIGHTS, example=EXAMPLE)


def line(function: Any, offset: int) -> str:
    return rf"\({Path(__file__).name}:{function.__code__.co_firstlineno + offset}\)"


@pytest.mark.smoke
@pytest.mark.parametrize("missing", ["jax2onnx", "onnx"])
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(YourError, match=rf"needs {missing}, which is not installed: pip install 'trainband\[onnx\]'"):
        export_program(program(sorting), tmp_path / "out", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_operation_that_onnx_lacks_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=rf"operation that fails there is random_bits {line(drawing, 1)}; stablehlo and"
    ):
        export_program(program(drawing), tmp_path / "out", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_operation_that_litert_lacks_is_named_with_its_line(tmp_path: Path) -> None:
    options = options_for("litert")
    with pytest.raises(
        ModelError, match=rf"operation that fails there is sort {line(sorting, 2)}; stablehlo, saved-model and onnx"
    ):
        export_program(program(sorting), tmp_path / "out", "litert", options=options)


@pytest.mark.parametrize("to", ["litert", "saved-model"])
def test_a_missing_converter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    package = environment.PACKAGES[to].name
    monkeypatch.setattr(environment, "find_spec", lambda _: None)
    environment.Converter.found.cache_clear()
    with pytest.raises(YourError, match=rf"needs {package}, which is not in this environment.*--make-converter"):
        export_program(program(sorting), tmp_path / "out", to)
    nothing = tmp_path / "nothing"
    nothing.write_text("#!/bin/sh\necho no such package >&2\nexit 1\n", encoding="utf-8")
    nothing.chmod(0o755)
    with pytest.raises(YourError, match=rf"cannot import it: no such package.*-m pip install {package}"):
        export_program(program(sorting), tmp_path / "out", to, options=Options(converter=nothing))


def test_a_converter_that_dies_is_reported(tmp_path: Path) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\n[ $1 = -c ] && echo 1.0.0 && exit 0\nkill -SEGV $$\n", encoding="utf-8")
    dying.chmod(0o755)
    with pytest.raises(ModelError, match=r"sorting as LiteRT.*was killed by signal 11"):
        export_program(program(sorting), tmp_path / "out", "litert", options=Options(converter=dying))
    assert not (tmp_path / "out").exists()
