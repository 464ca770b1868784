"""`fit` on one device comes to the numbers of plain Keras: values to the bit, where no other tolerance stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.keras.beside import compiled, expect_as_keras, fits, one_device, rows, small

import keras
from keras import layers, optimizers

X, Y = rows()
RATE = 0.02

STEP = 2e-5
"""Where XLA compiles an update into another order of roundings than in Keras's step: 8 updates in float32."""

SCHEDULE = optimizers.schedules.ExponentialDecay


def excluding() -> Any:
    optimizer = optimizers.AdamW(RATE, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizers.SGD(RATE),
    "momentum": lambda: optimizers.SGD(RATE, momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.Adam(RATE),
    "amsgrad": lambda: optimizers.Adam(RATE, amsgrad=True),
    "adamw": lambda: optimizers.AdamW(RATE, weight_decay=0.1),
    "adamw, excluding": excluding,
    "rmsprop": lambda: optimizers.RMSprop(RATE, momentum=0.5, centered=True),
    "adagrad": lambda: optimizers.Adagrad(RATE),
    "ftrl": lambda: optimizers.Ftrl(RATE),
    "lion": lambda: optimizers.Lion(RATE),
    "lamb": lambda: optimizers.Lamb(RATE),
    "muon": lambda: optimizers.Muon(RATE),
    "nadam": lambda: optimizers.Nadam(RATE),
    "adamax": lambda: optimizers.Adamax(RATE),
    "adadelta": lambda: optimizers.Adadelta(RATE),
    "adafactor": lambda: optimizers.Adafactor(RATE),
    "schedule": lambda: optimizers.Adam(SCHEDULE(0.1, decay_steps=2, decay_rate=0.5)),
    "clipnorm": lambda: optimizers.Adam(RATE, clipnorm=0.01),
    "global_clipnorm": lambda: optimizers.SGD(RATE, global_clipnorm=0.01),
    "accumulation": lambda: optimizers.Adam(RATE, gradient_accumulation_steps=2),
    "loss scale": lambda: optimizers.SGD(RATE, loss_scale_factor=8.0),
    "ema": lambda: optimizers.SGD(RATE, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
}


VARIANTS = {"adam", "amsgrad", "adamw", "adagrad", "lion", "lamb", "adamax", "adadelta", "global_clipnorm"}
"""Whose state and arithmetic are like those of another one here."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in VARIANTS else ()) for name in OPTIMIZERS]
)
def test_optimizers(name: str) -> None:
    plain, ours = expect_as_keras(lambda: small(optimizer=OPTIMIZERS[name]()), fits(X, Y), STEP)
    assert int(ours.optimizer.iterations) == int(plain.optimizer.iterations) > 0
    assert float(ours.optimizer.learning_rate) == pytest.approx(float(plain.optimizer.learning_rate))


def functional() -> Any:
    """Two inputs and two outputs, by name."""
    a, b = layers.Input((6,), name="a"), layers.Input((4,), name="b")
    hidden = layers.Concatenate()([layers.Dense(5)(a), b])
    outputs = {"kind": layers.Dense(3, name="kind")(hidden), "size": layers.Dense(1, name="size")(hidden)}
    return compiled(
        keras.Model({"a": a, "b": b}, outputs),
        loss={"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"},
        loss_weights={"kind": 1.0, "size": 0.3},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )


class Subclassed(keras.Model):  # type: ignore[misc]
    """Built by its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, activation="relu")
        self.normal = layers.BatchNormalization(momentum=0.8)
        self.drop = layers.Dropout(0.4)
        self.out = layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(self.drop(self.normal(self.hidden(x), training=training), training=training))


def regularised() -> Any:
    model = keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(8, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(0.01)),
            layers.Dense(3, kernel_constraint=keras.constraints.MaxNorm(0.3), bias_constraint="non_neg"),
        ]
    )
    return compiled(model, optimizer=optimizers.SGD(0.1))


def convolutional() -> Any:
    model = keras.Sequential(
        [
            layers.Input((6,)),
            layers.Reshape((6, 1)),
            layers.Conv1D(4, 3),
            layers.BatchNormalization(),
            layers.GaussianNoise(0.1),
            layers.GlobalAveragePooling1D(),
            layers.Dropout(0.2),
            layers.Dense(3),
        ]
    )
    return compiled(model, metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)])


def of_texts() -> Any:
    model = keras.Sequential([layers.Embedding(10, 4), layers.LSTM(5, dropout=0.2), layers.Dense(3)])
    return compiled(model, optimizer="rmsprop")


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "functional": (
        functional,
        fits({"a": X, "b": X[:, :4]}, {"kind": Y, "size": X[:, :1]}, sample_weight=None),
    ),
    "subclassed": (lambda: compiled(Subclassed()), fits(X, Y)),
    "callbacks in Keras's list": (
        lambda: compiled(Subclassed()),
        lambda model: fits(X, Y, callbacks=keras.callbacks.CallbackList(add_history=True, model=model))(model),
    ),
    "regularisers and constraints": (regularised, fits(X, Y)),
    "batch norm, noise and dropout": (convolutional, fits(X, Y)),
    "embedding and recurrence": (of_texts, fits((np.abs(X) * 3).astype("int32") % 10, Y)),
    "not built": (lambda: compiled(keras.Sequential([layers.Dense(4), layers.Dense(3)])), fits(X, Y)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    expect_as_keras(*MODELS[name], STEP)


class Derived(keras.Model):  # type: ignore[misc]
    """Built the functional way: Keras begins it as a model of its class, and again as a functional one."""


def test_a_class_of_models_that_is_built_the_functional_way_in_a_scope() -> None:
    with one_device().scope():
        entry = layers.Input((6,))
        model = compiled(Derived(entry, layers.Dense(3)(entry)), optimizer="sgd")
    assert len(fits(X, Y)(model).history["loss"]) == 2


CALLS: dict[str, dict[str, Any]] = {
    "class weights": {"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}},
    "sample weights": {"sample_weight": np.linspace(0, 2, len(X)).astype("float32")},
    "validation split": {"validation_split": 0.2},
    "validation data": {"validation_data": (X[:20], Y[:20]), "validation_freq": 2, "epochs": 4},
    "not shuffled": {"shuffle": False},
    "initial epoch": {"initial_epoch": 2, "epochs": 4},
    "steps per epoch": {"steps_per_epoch": 2, "epochs": 2},
    "a smaller last batch": {"batch_size": 24},
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_fit(name: str) -> None:
    def make() -> Any:
        return small(weighted_metrics=["accuracy"], optimizer=optimizers.SGD(0.1))

    expect_as_keras(make, fits(X, Y, **CALLS[name]), STEP)


def test_to_the_bit() -> None:
    """Plain gradient descent and Adam, whose updates XLA compiles as it does in Keras's own step."""
    for optimizer in ("sgd", "adam"):
        expect_as_keras(lambda optimizer=optimizer: small(optimizer=optimizer), fits(X, Y))  # type: ignore[misc]


def test_several_fits_one_after_the_other() -> None:
    def thrice(model: Any) -> Any:
        model.fit(X, Y, batch_size=16, verbose=0)
        model.fit(X[:30], Y[:30], batch_size=15, epochs=2, verbose=0)
        model.layers[-1].bias.assign(np.ones(3))
        model.optimizer.learning_rate = 0.5
        return model.fit(X, Y, batch_size=16, epochs=4, initial_epoch=3, verbose=0)

    expect_as_keras(lambda: small(optimizer=optimizers.SGD(0.1, momentum=0.9)), thrice, STEP)


def test_evaluate_and_predict() -> None:
    plain, ours = expect_as_keras(small, fits(X, Y))
    np.testing.assert_array_equal(plain.predict(X, verbose=0), ours.predict(X, verbose=0))
    np.testing.assert_array_equal(plain.evaluate(X, Y, verbose=0), ours.evaluate(X, Y, verbose=0))
    np.testing.assert_array_equal(plain(X), ours(X))


def test_steps_per_execution() -> None:
    expect_as_keras(lambda: small(steps_per_execution=3), fits(X, Y))  # 4 steps in an epoch


@pytest.fixture
def _bfloat16() -> Iterator[None]:
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.usefixtures("_bfloat16")
def test_mixed_bfloat16() -> None:
    expect_as_keras(small, fits(X, Y), 1e-3, 1e-3)


def test_a_batch_is_trained_on_between_two_fits() -> None:
    """`train_on_batch` in one process is Keras's own, and `fit` continues the training."""

    def fit(model: Any) -> Any:
        fits(X, Y)(model)
        model.train_on_batch(X, Y)
        return fits(X, Y)(model)

    expect_as_keras(lambda: small(optimizer=optimizers.SGD(RATE, momentum=0.9)), fit, STEP)
