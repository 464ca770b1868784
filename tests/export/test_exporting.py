"""Exports to StableHLO: what is written computes what the function does, and nothing is left where it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

import trainband
from trainband.errors import ModelError, YourError
from trainband.export import export_program, load
from trainband.export import exporting as exporting_module
from trainband.export.targets import target
from trainband.model.inference import InferenceProgram

WEIGHTS: dict[str, NDArray[Any]] = {
    "params/hidden/kernel": np.arange(12, dtype=np.float32).reshape(4, 3) / 10,
    "params/hidden/bias": np.array([1, 2, 3], np.float32),
    "params/scale": np.array(0.5, jnp.bfloat16),
}
EXAMPLE: dict[str, Any] = {
    "pixels": np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4),
    "ids": np.arange(5, dtype=np.int32),
}


def predict(params: Any, batch: Any) -> dict[str, Any]:
    hidden = batch["pixels"] @ params["hidden"]["kernel"] + params["hidden"]["bias"]
    return {"scores": jnp.tanh(hidden) * params["scale"].astype(jnp.float32), "ids": batch["ids"] + 1}


def program() -> InferenceProgram:
    return trainband.Predictor(predict, example=EXAMPLE).program(WEIGHTS, source="runs/a/step-7", global_step=7)


@pytest.mark.smoke
def test_an_export_computes_the_same_for_any_number_of_examples(tmp_path: Path) -> None:
    report = export_program(program(), tmp_path / "out", "stablehlo")
    assert (dict(report.difference), report.examples) == ({"ids": 0.0, "scores": 0.0}, 5)
    run = load(tmp_path / "out").compiled()
    for count in (1, 2, 11):
        batch = {name: np.resize(leaf, (count, *leaf.shape[1:])) for name, leaf in EXAMPLE.items()}
        found, wanted = run(batch), predict(nested_params(), batch)
        np.testing.assert_allclose(found["scores"], wanted["scores"], rtol=1e-6)
        np.testing.assert_array_equal(found["ids"], batch["ids"] + 1)


def nested_params() -> Any:
    return {
        "hidden": {"kernel": WEIGHTS["params/hidden/kernel"], "bias": WEIGHTS["params/hidden/bias"]},
        "scale": WEIGHTS["params/scale"],
    }


def test_the_loader_beside_it_needs_no_trainband(tmp_path: Path) -> None:
    export_program(program(), tmp_path / "out", "stablehlo")
    np.savez(tmp_path / "in.npz", **EXAMPLE)
    forbidding = (
        "import runpy, sys; sys.modules['trainband'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    loader = [sys.executable, "-c", forbidding, str(tmp_path / "out" / "load.py")]
    subprocess.run([*loader, str(tmp_path / "in.npz"), str(tmp_path / "out.npz")], check=True, timeout=120)
    with np.load(tmp_path / "out.npz") as outputs:
        np.testing.assert_allclose(outputs["scores"], predict(nested_params(), EXAMPLE)["scores"], rtol=1e-6)


def test_the_manifest_says_what_is_in_it(tmp_path: Path) -> None:
    export_program(program(), tmp_path / "out", "stablehlo")
    manifest = load(tmp_path / "out").manifest
    assert (manifest.name, manifest.source, manifest.global_step) == ("predict", "runs/a/step-7", 7)
    assert [str(spec) for spec in manifest.signature.inputs] == ["ids: int32[batch]", "pixels: float32[batch, 4]"]
    assert [str(spec) for spec in manifest.signature.outputs] == ["ids: int32[batch]", "scores: float32[batch, 3]"]
    assert set(manifest.sha256) == {"program.jax_export", "weights.safetensors", "load.py"}
    assert manifest.format["platforms"] == ["cpu", "cuda", "rocm", "tpu"]
    assert manifest.difference == {"ids": 0.0, "scores": 0.0}


def test_what_computes_something_else_is_not_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = target("stablehlo")

    class Wrong:
        name = "wrong"
        write = staticmethod(real.write)

        @staticmethod
        def load(directory: Path, written: Mapping[str, Any]) -> Callable[..., dict[str, NDArray[Any]]]:
            run = real.load(directory, written)
            return lambda inputs: {name: leaf + (name == "scores") * 0.01 for name, leaf in run(inputs).items()}

    monkeypatch.setattr(exporting_module, "target", lambda *_: Wrong())
    with pytest.raises(ModelError, match=r"'scores' differs by 0\.01.*Nothing was exported"):
        export_program(program(), tmp_path / "out", "stablehlo")
    assert list(tmp_path.iterdir()) == []


def test_only_an_export_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_program(program(), out, "stablehlo")
    with pytest.raises(YourError, match="already exists"):
        export_program(program(), out, "stablehlo")
    export_program(program(), out, "stablehlo", force=True)
    (out / "manifest.json").unlink()
    with pytest.raises(YourError, match="is not an exported model"):
        export_program(program(), out, "stablehlo", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_damaged_export_is_refused(tmp_path: Path) -> None:
    export_program(program(), tmp_path / "out", "stablehlo")
    weights = tmp_path / "out" / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(YourError, match=r"weights\.safetensors is not the file that was exported"):
        load(tmp_path / "out")


@pytest.mark.parametrize(("version", "advice"), [(1, "export the checkpoint again"), (99999, "install a newer JAX")])
def test_an_export_of_another_age_is_refused(tmp_path: Path, version: int, advice: str) -> None:
    export_program(program(), tmp_path / "out", "stablehlo")
    path = tmp_path / "out" / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["format"] |= {"calling_convention_version": version, "jax": "0.3.1"}
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(YourError, match=rf"exported by JAX 0\.3\.1; this is JAX .*{advice}"):
        load(tmp_path / "out").compiled()


def test_a_trainer_exports_what_it_predicts(tmp_path: Path) -> None:
    def loss(params: Any, state: Any, batch: Any, key: jax.Array) -> Any:
        del key
        return ((batch @ params[0] - state["shift"]) ** 2).mean(), (state, {})

    def shifted(params: Any, state: Any, batch: Any) -> Any:
        return batch @ params[0] - state["shift"]

    trainer = trainband.Trainer(
        init=lambda key: [jax.random.normal(key, (4, 2))],
        init_state=lambda _: {"shift": jnp.ones(2)},
        loss=loss,
        optimizer=optax.sgd(0.1),
        console=False,
    )
    batch = EXAMPLE["pixels"]
    trainer.fit([batch], steps=3)
    report = trainer.export(shifted, batch, tmp_path / "out")
    assert report is not None
    assert report.artifact.manifest.global_step == 3
    found = load(tmp_path / "out").compiled()({"input": batch})
    np.testing.assert_allclose(found["output"], trainer.predict(shifted, [batch]), rtol=1e-6)
