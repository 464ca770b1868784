"""The patterns of Keras's guides, each beside plain Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.keras.beside import compiled, expect_as_keras, expect_same, fits, one_device, rows, small, trained

import keras
import trainband
from keras import layers, ops
from trainband.errors import ModelError
from trainband.keras import distribute

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
"""Keras 3.15 with NumPy 2.4: an optimizer's config reads the learning rate in an old way."""

X, Y = rows()
STEP = 2e-5


class Linear(layers.Layer):  # type: ignore[misc]
    """A layer of one's own, with a loss and a variable that is not trained."""

    def __init__(self, units: int = 8) -> None:
        super().__init__()
        self.units = units

    def build(self, input_shape: Any) -> None:
        self.w = self.add_weight(shape=(input_shape[-1], self.units), initializer="glorot_uniform")
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.seen.assign_add(1.0)
        self.add_loss(1e-3 * ops.sum(ops.square(self.w)))
        return ops.relu(x @ self.w)


def test_custom_layer_and_custom_loss() -> None:
    def loss(y_true: Any, y_pred: Any) -> Any:
        kinds = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), 3)
        return ops.mean(ops.square(kinds - y_pred), axis=-1)

    def make() -> Any:
        return compiled(keras.Sequential([layers.Input((6,)), Linear(), layers.Dense(3)]), loss=loss)

    _, ours = expect_as_keras(make, fits(X, Y), STEP)
    assert float(ours.layers[0].seen.value) == 8.0


class OwnLoss(keras.Model):  # type: ignore[misc]
    """compute_loss and compute_metrics of its own, as in «Customizing fit»."""

    def __init__(self) -> None:
        super().__init__()
        self.out = layers.Dense(3)
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    def call(self, x: Any) -> Any:
        return self.out(x)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        del sample_weight, training
        return ops.mean(ops.square(y_pred - x[:, :3])) + 0.0 * ops.sum(ops.cast(y, "float32"))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        self.error.update_state(x[:, :3], y_pred)
        return {**found, "error": self.error.result(), "largest": ops.max(y_pred)}


def test_compute_loss_and_compute_metrics() -> None:
    """What compute_metrics adds to the metrics is of the last batch, as in Keras."""
    _, ours = expect_as_keras(lambda: compiled(OwnLoss()), fits(X, Y), STEP)
    assert {"error", "largest"} <= set(ours.history.history)


def pretrained() -> Any:
    return keras.Sequential([layers.Input((6,)), layers.Dense(8), layers.BatchNormalization(), layers.ReLU()])


def test_transfer_learning_and_fine_tuning() -> None:
    """Frozen layers, then all of them with a smaller rate, as in «Transfer learning»."""

    def make() -> Any:
        base = pretrained()
        base.trainable = False
        inputs = layers.Input((6,))
        return compiled(keras.Model(inputs, layers.Dense(3)(base(inputs, training=False))))

    frozen = []

    def fit(model: Any) -> Any:
        before = [np.array(value) for value in model.layers[1].get_weights()]
        fits(X, Y)(model)
        frozen.append(all(map(np.array_equal, before, model.layers[1].get_weights())))
        model.layers[1].trainable = True
        compiled(model, optimizer=keras.optimizers.Adam(1e-2))
        return fits(X, Y)(model)

    expect_as_keras(make, fit, STEP)
    assert frozen == [True, True]


def test_frozen_values_that_are_changed_between_two_trainings_count() -> None:
    def make() -> Any:
        base = layers.Dense(8)
        base.trainable = False
        return compiled(keras.Sequential([layers.Input((6,)), base, layers.Dense(3)]))

    def fit(model: Any) -> Any:
        fits(X, Y, epochs=1)(model)
        model.layers[0].kernel.assign(np.ones((6, 8)))
        return fits(X, Y, epochs=1)(model)

    expect_as_keras(make, fit, STEP)


class OwnStep(keras.Model):  # type: ignore[misc]
    """A train_step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.out = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.out(x)

    def train_step(self, state: Any, data: Any) -> Any:
        return super().train_step(state, data)


def test_a_train_step_of_its_own_is_refused() -> None:
    with pytest.raises(
        ModelError,
        match=r"OwnStep has its own train_step.*Override call\(\), compute_loss\(\) or .*trainband.Trainer",
    ):
        trained(lambda: compiled(OwnStep()), fits(X, Y), one_device())


# --- a model's life: saved, loaded, made in a scope


def test_scope_is_distribute() -> None:
    plain, _ = trained(small, fits(X, Y))

    def make() -> Any:
        with one_device().scope():
            return small()

    ours, _ = trained(make, fits(X, Y))
    expect_same(ours, plain)
    with pytest.raises(ModelError, match=r"is already trained by OneDevice; make a copy of it with keras.models.clone"):
        distribute(ours, trainband.OneDevice())
    assert not hasattr(keras.Sequential([layers.Dense(1)]), "_trainband")


def test_a_saved_model_goes_on_in_plain_keras_and_back(tmp_path: Path) -> None:
    """With the optimizer's state: as if it had been trained in one go."""
    once, _ = trained(small, fits(X, Y, epochs=4, shuffle=False))
    ours, _ = trained(small, fits(X, Y, epochs=1, shuffle=False), one_device())
    ours.save(tmp_path / "one.keras")
    plain = keras.models.load_model(tmp_path / "one.keras")
    np.testing.assert_array_equal(plain.predict(X, verbose=0), ours.predict(X, verbose=0))
    fits(X, Y, epochs=2, shuffle=False)(plain)
    plain.save(tmp_path / "two.keras")
    again = distribute(keras.models.load_model(tmp_path / "two.keras"), one_device())
    fits(X, Y, epochs=1, shuffle=False)(again)
    expect_same(again, once, STEP)


def test_a_checkpoint_directory_goes_on_where_it_ended(tmp_path: Path) -> None:
    once, _ = trained(small, fits(X, Y, epochs=3, shuffle=False))
    settings = {"checkpoint_dir": tmp_path / "there", "save_steps": 4}
    trained(small, fits(X, Y, epochs=1, shuffle=False), one_device(), settings)
    again, history = trained(small, fits(X, Y, epochs=3, shuffle=False), one_device(), settings)
    assert len(history["loss"]) == 2
    expect_same(again, once, STEP)
