"""What each format computes is what `predict` computes, on the digits' test set and for any number of examples."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tests.export.converters import options_for
from tests.export.models import MODELS

from trainband.export import export_program, load


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("target", ["stablehlo", "onnx", "litert"])
def test_a_format_computes_what_the_model_does(tmp_path: Path, target: str, model: str) -> None:
    options = options_for(target)
    program = MODELS[model]()
    cumsum = jnp.cumsum
    report = export_program(program, tmp_path / "out", target, options=options)
    assert jnp.cumsum is cumsum  # converters leave JAX as it was for the rest of the process
    assert max(report.difference.values()) < 1e-4
    assert report.examples == len(next(iter(program.example.values())))
    artifact = load(tmp_path / "out")
    run, predict = artifact.compiled(options), program.compiled()
    batch = {name: leaf[7:10] for name, leaf in program.example.items()}
    found, wanted = run(batch), predict(batch)
    assert found.keys() == {spec.name for spec in artifact.signature.outputs}
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.limit(300)
def test_a_saved_model_computes_what_the_model_does(tmp_path: Path) -> None:
    program = MODELS["convnet"]()
    report = export_program(program, tmp_path / "out", "saved-model", options=options_for("saved-model"))
    assert max(report.difference.values()) < 1e-4
