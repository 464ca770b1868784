"""`tf.keras`: layers, models and their training have TensorFlow's variables, values and derivatives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compat.golden_values import assert_close_to, golden
from tests.compat.models_table import CLASSES, LAYERS, TRAINED, X, values_of_layer, values_of_training

import trainband.compat.tf1 as tf


@pytest.fixture(scope="module")
def wanted() -> dict[str, Any]:
    return golden("models")


def _of(name: str, wanted: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in wanted.items() if key.split()[0] == name}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_give_what_tensorflow_gives(name: str, wanted: dict[str, Any]) -> None:
    assert_close_to(values_of_layer(tf, name), _of(name, wanted), 2e-5)


@pytest.mark.parametrize("name", TRAINED)
def test_fit_gives_what_tensorflow_gives(name: str, wanted: dict[str, Any]) -> None:
    assert_close_to(values_of_training(tf, name), _of(name, wanted), 1e-4)


def _small_model() -> Any:
    layers = tf.keras.layers
    x = tf.keras.Input((6,))
    y = layers.Dense(4, activation="relu", kernel_regularizer=tf.keras.regularizers.l2(0.01))(x)
    return tf.keras.Model(x, layers.Dense(3, activation="softmax", name="kind")(layers.add([y, layers.Dense(4)(x)])))


@pytest.mark.parametrize("name", ["weights", "weights.h5"])
def test_a_model_comes_back_from_its_files(name: str, tmp_path: Path) -> None:
    if name.endswith(".h5"):
        pytest.importorskip("h5py")
    tf.keras.backend.clear_session()
    model = _small_model()
    wanted = model.predict(X)
    model.save_weights(tmp_path / name)
    again = tf.keras.models.model_from_json(model.to_json())
    assert [one.name for one in again.layers] == [one.name for one in model.layers]
    assert np.abs(again.predict(X) - wanted).max() > 1e-3
    model.load_weights(tmp_path / name)
    again.set_weights(model.get_weights())
    np.testing.assert_allclose(again.predict(X), wanted, rtol=1e-6)


def test_a_compiled_model_is_an_estimator_that_begins_with_its_values(tmp_path: Path) -> None:
    tf.keras.backend.clear_session()
    model = _small_model()
    model.compile(tf.keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    loss, accuracy = model.evaluate(X, CLASSES, verbose=0)
    estimator = tf.keras.estimator.model_to_estimator(model, model_dir=str(tmp_path))

    def input_fn() -> Any:
        return tf.data.Dataset.from_tensors((X, CLASSES))

    first = estimator.evaluate(input_fn)
    assert first["loss"] == pytest.approx(loss, rel=1e-5)
    assert first["accuracy"] == pytest.approx(accuracy)
    estimator.train(input_fn)
    model.train_on_batch(X, CLASSES)
    assert estimator.evaluate(input_fn)["loss"] == pytest.approx(model.evaluate(X, CLASSES, verbose=0)[0], rel=1e-5)
    assert set(estimator.get_variable_names()) > {"dense/kernel", "kind/bias", "global_step"}


def test_callbacks_see_the_logs_and_end_training() -> None:
    tf.keras.backend.clear_session()
    model = _small_model()
    model.compile("sgd", "sparse_categorical_crossentropy")
    seen = []
    kinds = tf.keras.callbacks
    look = kinds.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append((epoch, sorted(logs))))
    stop = kinds.EarlyStopping(monitor="loss", mode="max", patience=2)
    model.fit(X, CLASSES, epochs=9, verbose=0, callbacks=[look, stop], validation_split=0.25)
    assert seen == [(epoch, ["loss", "val_loss"]) for epoch in range(3)]


def test_a_phase_that_is_not_set_is_fed() -> None:
    with tf.Graph().as_default():
        y = tf.keras.layers.Dropout(0.5)(tf.ones([1000]))
        with tf.Session() as session:
            assert session.run(y).sum() == 1000
            assert set(session.run(y, {tf.keras.backend.learning_phase(): True})) == {0.0, 2.0}


def test_the_backend_makes_and_changes_variables() -> None:
    backend = tf.keras.backend
    backend.clear_session()
    one = backend.variable(tf.ones([2, 3]) * 2.0)
    assert backend.get_value(one).tolist() == [[2.0] * 3] * 2
    backend.set_value(one, np.zeros([2, 3]))
    given = backend.placeholder([2, 3])
    add = backend.function([given], [backend.sum(given)], updates=[(one, one + given)])
    assert add([np.ones([2, 3])]) == [6.0]
    assert backend.get_value(one).sum() == 6.0
