"""Compressing a program: what is stored decodes in the program, activations by their ranges, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

import trainband
from trainband.compress import Compressed, Selection, compress, load
from trainband.compress.encodings import Int8, LowRank, Plain, Sparse
from trainband.errors import DataError, ModelError, ModelMismatch, YourError
from trainband.export import export_program, program_of
from trainband.export import load as load_export
from trainband.model.inference import InferenceProgram


def normal(*shape: int) -> NDArray[Any]:
    """Random numbers, for one shape always the same, whichever tests have run before."""
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


TENSORS: dict[str, NDArray[Any]] = {
    "params/conv/kernel": normal(3, 3, 2, 16),
    "params/embed/table": normal(40, 8),
    "params/transposed": normal(10, 72),  # its output channels are its rows
    "params/hidden/kernel": normal(64, 72),
    "params/hidden/bias": normal(72),
    "params/counts": np.arange(300, dtype=np.int32).reshape(3, 100),
}


def predict(params: Any, batch: Any) -> jax.Array:
    x = jax.lax.conv_general_dilated(
        batch["images"], params["conv"]["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jax.nn.relu(x).reshape(x.shape[0], -1) + jnp.tile(params["embed"]["table"][batch["ids"]], (1, 8))
    x = jax.jit(lambda held, y: jax.nn.gelu(y @ held["kernel"] + held["bias"]))(params["hidden"], x)
    result: jax.Array = x @ params["transposed"].T + params["counts"][0, 0]
    return result


EXAMPLE = {"images": normal(5, 4, 4, 2), "ids": np.arange(5, dtype=np.int32)}
PREDICTOR = trainband.Predictor(predict, example=EXAMPLE)


def program(**changes: Any) -> InferenceProgram:
    return PREDICTOR.program({**TENSORS, **changes}, source="runs/a", global_step=7)


def output(of: InferenceProgram) -> NDArray[Any]:
    return of.compiled()(EXAMPLE)["output"]


def numpy_int8(name: str, axis: int) -> NDArray[Any]:
    values = TENSORS[name]
    scale = np.abs(values).max(axis=tuple(i for i in range(values.ndim) if i != axis), keepdims=True) / 127
    return np.rint(values / scale) * scale


@pytest.mark.smoke
def test_each_tensor_is_quantised_along_the_axis_that_its_products_keep() -> None:
    made = compress(program(), int8=True)
    axes = {name: one.axis for name, one in made.encodings.items() if isinstance(one, Int8)}
    assert axes == {"params/conv/kernel": 3, "params/embed/table": 0, "params/transposed": 0, "params/hidden/kernel": 1}
    decoded = made.tensors()
    for name, axis in axes.items():
        np.testing.assert_allclose(decoded[name], numpy_int8(name, axis), atol=1e-6)
    np.testing.assert_array_equal(decoded["params/counts"], TENSORS["params/counts"])
    small = made.program(program())
    assert small.nbytes == made.nbytes < sum(array.nbytes for array in TENSORS.values()) / 3
    assert (small.source, small.global_step) == ("runs/a", 7)
    wanted = output(program(**{name: decoded[name] for name in axes}))
    np.testing.assert_allclose(output(small), wanted, rtol=1e-5, atol=1e-4)


def test_products_of_integers_are_those_of_rounded_activations() -> None:
    made = compress(program(), int8=True, calibrate=EXAMPLE)
    assert set(made.ranges) == {"params/conv/kernel", "params/hidden/kernel", "params/transposed"}
    assert made.ranges["params/conv/kernel"] == np.abs(EXAMPLE["images"]).max()
    base = program()
    small = made.program(base)
    structs = [{k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in d.items()} for d in (small.weights, EXAMPLE)]
    text = str(jax.make_jaxpr(small.function)(*structs))
    assert text.count("preferred_element_type=int32") == 3
    # By hand: the same roundings, and products of floats.
    step = made.ranges["params/transposed"] / 127
    hidden = np.asarray(by_hand(made))
    rounded = np.clip(np.rint(hidden / step), -127, 127) * step
    wanted = rounded @ numpy_int8("params/transposed", 0).T
    # An activation at half a step may be rounded either way.
    assert np.abs(output(small) - wanted).max() <= 1.01 * step * np.abs(TENSORS["params/transposed"]).max() * 3
    assert np.abs(output(small) - output(base)).max() < 0.05 * np.abs(output(base)).max()


def by_hand(made: Compressed) -> Any:
    """What the last layer gets."""
    steps = {name: largest / 127 for name, largest in made.ranges.items()}

    def rounded(x: Any, name: str) -> Any:
        return jnp.clip(jnp.round(x / steps[name]), -127, 127) * steps[name]

    x = jax.lax.conv_general_dilated(
        rounded(EXAMPLE["images"], "params/conv/kernel"),
        jnp.asarray(numpy_int8("params/conv/kernel", 3)),
        (2, 2),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    table = numpy_int8("params/embed/table", 0)
    x = jax.nn.relu(x).reshape(5, -1) + jnp.tile(table[EXAMPLE["ids"]], (1, 8))
    x = rounded(x, "params/hidden/kernel") @ numpy_int8("params/hidden/kernel", 1)
    return jax.nn.gelu(x + TENSORS["params/hidden/bias"])


def test_a_percentile_cuts_what_is_rare() -> None:
    images = np.ones((128, 4, 4, 2), np.float32)
    images[64, 0, 0, 0] = 100.0
    data = {"images": images, "ids": np.zeros(128, np.int32)}
    assert compress(program(), int8=True, calibrate=data).ranges["params/conv/kernel"] == 100
    assert compress(program(), int8=True, calibrate=data, percentile=99.0).ranges["params/conv/kernel"] == 1


def test_a_weight_that_is_used_twice_has_two_ranges_and_loops_compute_with_floats() -> None:
    def twice(params: Any, x: jax.Array) -> jax.Array:
        x = (x @ params["w"]) @ params["w"]
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ params["w"]), None), x, length=2)[0]

    weights = {"params/w": normal(16, 16) / 4}
    base = trainband.Predictor(twice, example=normal(3, 16)).program(weights)
    made = compress(base, int8=True, calibrate={"input": base.example["input"]})
    assert set(made.ranges) == {"params/w", "params/w#2"}
    found, wanted = (of.compiled()(base.example)["output"] for of in (made.program(base), base))
    assert np.abs(found - wanted).max() < 0.05


def test_every_way_to_store_a_tensor_is_saved_and_exported(tmp_path: Path) -> None:
    hidden = TENSORS["params/hidden/kernel"]
    sparse = np.where(np.random.default_rng(0).random(hidden.shape) < 0.8, 0, hidden).astype(np.float32)
    low = (normal(10, 2) @ normal(2, 72)).astype(np.float32)
    base = program(**{"params/hidden/kernel": sparse, "params/transposed": low})
    integers = compress(base, int8=True, half="bfloat16", rank=2, select=Selection(exclude="conv|embed|hidden"))
    kinds = {name.removeprefix("params/"): type(one) for name, one in integers.encodings.items()}
    assert kinds == {
        "conv/kernel": Plain,
        "embed/table": Plain,
        "transposed": LowRank,
        "hidden/kernel": Sparse,
        "hidden/bias": Plain,
        "counts": Plain,
    }
    for made in (integers, compress(base, int8=True, calibrate=EXAMPLE)):
        path = made.save(tmp_path / "small", force=True)
        small = program_of(path, PREDICTOR)
        np.testing.assert_array_equal(output(small), output(made.program(base)))
        np.testing.assert_allclose(
            output(program_of(path, PREDICTOR, unpack=True)), output(small), rtol=1e-5, atol=1e-5
        )
        assert not any(isinstance(one, Sparse) for one in load(path).unpacked().encodings.values())
        export_program(small, tmp_path / "out", "stablehlo", force=True)
        exported = load_export(tmp_path / "out")
        weights = (tmp_path / "out" / "weights.safetensors").stat().st_size
        assert weights < made.nbytes + 4096
        few = {name: array[:2] for name, array in EXAMPLE.items()}
        np.testing.assert_allclose(exported.compiled()(few)["output"], output(small)[:2], rtol=1e-4, atol=1e-4)


def test_the_report_finds_the_worst_tensor_and_the_accuracy(tmp_path: Path) -> None:
    # All others have values that int8 stores as they are.
    axes = {"params/conv/kernel": 3, "params/embed/table": 0, "params/transposed": 0}
    base = program(**{name: numpy_int8(name, axis).astype(np.float32) for name, axis in axes.items()})
    labels = output(base).argmax(-1)
    made = compress(base, int8=True, evaluate={**EXAMPLE, "labels": labels})
    report = made.report
    assert report is not None
    assert report.worst is not None
    assert report.worst.name == "params/hidden/kernel"
    assert (report.nbytes_before, report.nbytes_after) == (base.nbytes, made.nbytes)
    assert report.quality is not None
    assert (report.quality.metric, report.quality.before, report.quality.examples) == ("accuracy", 1.0, 5)
    change = np.abs(output(made.program(base)) - output(base)).max() / np.abs(output(base)).max()
    assert report.change == pytest.approx(change, rel=1e-3)
    record = json.loads((made.save(tmp_path / "small") / "compressed.json").read_text(encoding="utf-8"))
    assert record["report"]["quality"]["before"] == 1.0
    scores = compress(base, int8=True, evaluate={**EXAMPLE, "labels": output(base)}).report
    assert scores is not None
    assert scores.quality is not None
    assert scores.quality.metric == "mean squared error"
    assert scores.quality.before == pytest.approx(0, abs=1e-6)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "nothing asked for": ({}, ModelError, "say how to compress"),
    "an integer table": (
        {"int8": True, "select": Selection(only="counts")},
        ModelError,
        "cannot quantise counts, whose dtype is int32",
    ),
    "no such tensor": ({"int8": True, "select": Selection(only="head")}, ModelError, "matches no tensor"),
    "an empty calibration set": (
        {"int8": True, "calibrate": {name: array[:0] for name, array in EXAMPLE.items()}},
        DataError,
        "the calibration set is empty; give at least one example of ids: int32",
    ),
    "a calibration set of other shapes": (
        {"int8": True, "calibrate": {**EXAMPLE, "images": np.ones((5, 4, 4, 3), np.float32)}},
        DataError,
        r"the calibration set does not fit the program: the input 'images' is float32\[5, 4, 4, 3\]; expected",
    ),
    "a calibration set with NaN": (
        {"int8": True, "calibrate": {**EXAMPLE, "images": np.full((5, 4, 4, 2), np.nan, np.float32)}},
        DataError,
        "is not finite on the calibration set",
    ),
    "a calibration set without int8": ({"half": True, "calibrate": EXAMPLE}, ModelError, "needs int8=True"),
    "no labels": ({"int8": True, "evaluate": EXAMPLE}, DataError, "must have an array named 'labels'"),
    "other labels": (
        {"int8": True, "evaluate": {**EXAMPLE, "labels": np.zeros((5, 3), np.float32)}},
        DataError,
        r"labels are float32\[5, 3\], but predict returns float32\[5, 10\]",
    ),
    "a share above 1": ({"prune": 80}, ModelError, "prune must be a share of the weights"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    settings, kind, words = BAD[name]
    with pytest.raises(kind, match=words):
        compress(program(), **settings)


def test_weights_that_are_no_numbers_are_refused() -> None:
    broken = TENSORS["params/hidden/kernel"].copy()
    broken[3, 4] = np.nan
    with pytest.raises(ModelError, match="params/hidden/kernel has weights that are NaN or infinite"):
        compress(program(**{"params/hidden/kernel": broken}), int8=True)


def damage_shape(path: Path) -> None:
    record = json.loads((path / "compressed.json").read_text(encoding="utf-8"))
    record["tensors"]["params/hidden/kernel"]["shape"] = [64, 71]
    (path / "compressed.json").write_text(json.dumps(record), encoding="utf-8")


def cut_weights(path: Path) -> None:
    weights = path / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])


def no_such_axis(path: Path) -> None:
    record = json.loads((path / "compressed.json").read_text(encoding="utf-8"))
    record["tensors"]["params/hidden/kernel"]["axis"] = 99
    (path / "compressed.json").write_text(json.dumps(record), encoding="utf-8")


def nested_deeply(path: Path) -> None:
    (path / "compressed.json").write_bytes(b"[" * 100_000)


@pytest.mark.parametrize("damage", [damage_shape, cut_weights, no_such_axis, nested_deeply])
def test_a_damaged_or_foreign_compressed_model_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = compress(program(), int8=True).save(tmp_path / "small")
    with pytest.raises(YourError, match="already exists"):
        compress(program(), int8=True).save(path)
    with pytest.raises(ModelError, match="is already compressed"):
        compress(path, int8=True)
    other = trainband.Predictor(lambda params, batch: batch @ params["w"], init=lambda _: {"w": jnp.ones((3, 3))})
    with pytest.raises(ModelMismatch, match="is of another model"):
        program_of(path, other, example=np.ones((2, 3), np.float32))
    with pytest.raises(ModelMismatch, match="is of another model than predict: params/conv/kernel is float32"):
        replace(load(path), encodings={}).program(program())
    damage(path)
    with pytest.raises(YourError, match="is a damaged compressed model"):
        load(path)


def test_a_bitmap_with_more_bits_than_values_is_refused(tmp_path: Path) -> None:
    """Decoding would read what lies behind the values."""
    path = compress(program(), prune=0.5).save(tmp_path / "small")
    stored = dict(load_file(path / "weights.safetensors"))
    name = next(name for name in stored if name.endswith("/bitmap"))
    stored[name] = np.full_like(stored[name], 255)
    save_file(stored, path / "weights.safetensors")
    with pytest.raises(YourError, match="more bits than there are values"):
        load(path)
