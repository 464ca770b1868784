"""`tf.saved_model`: modules and models of Keras's as directories, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2 as tf


class _Net(tf.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
        self.count = tf.Variable(0, trainable=False)
        self.parts = [tf.Variable(1.0)]

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        self.count.assign_add(1)
        return tf.matmul(x, self.w) + self.parts[0]

    @tf.function  # type: ignore[untyped-decorator]
    def scaled(self, x: Any, by: float = 1.0) -> Any:
        return {"y": x * self.w[0, 1] * by, "all": (x, [x])}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])  # type: ignore[untyped-decorator]
    def decides(self, x: Any) -> Any:
        return x if tf.reduce_sum(x) > 0 else -x


def test_a_module_is_saved_with_its_functions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net, x = _Net(), tf.ones([3, 2])
    net.scaled(tf.ones([3]), 2.0)
    path = str(tmp_path / "net")
    tf.saved_model.save(net, path, signatures={"serving_default": net.__call__})
    assert "decides is left out" in caplog.text
    assert int(net.count) == 0
    assert tf.saved_model.contains_saved_model(path)
    loaded = tf.saved_model.load(path)
    np.testing.assert_array_equal(loaded(x), [[5, 7]] * 3)
    assert (int(loaded.count), int(net.count), loaded.parts[0].numpy()) == (1, 0, 1.0)
    assert len(loaded.trainable_variables) == 2
    found = loaded.scaled(tf.ones([3]))
    assert found["y"].numpy().tolist() == [4.0] * 3
    assert isinstance(found["all"], tuple)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(loaded(x)) * loaded.parts[0]
    assert [one.numpy().tolist() for one in tape.gradient(total, [loaded.w, loaded.parts[0]])] == [
        [[3.0, 3.0], [3.0, 3.0]], 42.0,
    ]  # fmt: skip
    serve = loaded.signatures["serving_default"]
    assert serve(x=tf.ones([1, 2]))["output_0"].numpy().tolist() == [[5.0, 7.0]]
    assert serve.structured_input_signature == ((), {"x": tf.TensorSpec([None, 2], tf.float32, "x")})
    with pytest.raises(ValueError, match="Could not find matching concrete function"):
        loaded.scaled(tf.ones([4]))
    with pytest.raises(TypeError, match="Can not cast"):
        serve(x=tf.ones([1, 3]))
    net.w.assign(tf.zeros([2, 2]))
    np.testing.assert_array_equal(tf.saved_model.load(path)(x), [[5, 7]] * 3)


def test_a_model_of_keras_is_saved(tmp_path: Path) -> None:
    layers, x = tf.keras.layers, tf.ones([4, 3])
    model = tf.keras.Sequential([layers.Input((3,)), layers.Dense(2), layers.BatchNormalization(), layers.Dropout(0.5)])
    tf.saved_model.save(model, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    ((name, value),) = loaded.signatures["serving_default"](x).items()
    assert name == "output_0"
    np.testing.assert_allclose(value, model(x), rtol=1e-6)
    np.testing.assert_allclose(loaded(x), model(x), rtol=1e-6)
    again = tf.keras.models.load_model(str(tmp_path / "model"))
    np.testing.assert_allclose(again(x), model(x), rtol=1e-6)
    model.save(str(tmp_path / "saved"))
    np.testing.assert_allclose(tf.saved_model.load(str(tmp_path / "saved"))(x), model(x), rtol=1e-6)


def test_what_cannot_be_saved_or_loaded_is_named(tmp_path: Path) -> None:
    outside = tf.Variable(1.0)
    root = tf.Module()
    root.f = tf.function(lambda x: x * outside, input_signature=[tf.TensorSpec([])])
    with pytest.raises(ValueError, match="untracked"):
        tf.saved_model.save(root, str(tmp_path / "x"))
    with pytest.raises(ValueError, match="Trackable"):
        tf.saved_model.save(3, str(tmp_path / "x"))
    with pytest.raises(OSError, match="does not exist at"):
        tf.saved_model.load(str(tmp_path / "nothing"))
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(OSError, match="cannot be read here"):
        tf.saved_model.load(str(tmp_path))


def test_a_saved_model_that_names_other_files_or_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "net"
    tf.saved_model.save(_Net(), str(path))
    sound = (path / "saved_model.json").read_text()
    (tmp_path / "outside.jax").write_bytes(next((path / "functions").iterdir()).read_bytes())
    index = json.loads(sound)
    for entry in index["functions"]["__call__"]:
        entry["file"] = "../../outside.jax"
    hostile = [
        json.dumps(index),
        sound.replace('"names"', '"no_names"'),
        sound.replace('"tree"', '"no_tree"'),
        sound[:-10],
        "[" * 100_000,
        "[]",
    ]
    for text in hostile:
        (path / "saved_model.json").write_text(text)
        with pytest.raises(OSError, match=rf"{path} is a damaged SavedModel"):
            tf.saved_model.load(str(path))
    (path / "saved_model.json").write_text(sound)
    for program in (path / "functions").iterdir():
        program.write_bytes(b"\xff" * 100)
    with pytest.raises(OSError, match=rf"{path} is a damaged SavedModel"):
        tf.saved_model.load(str(path))
