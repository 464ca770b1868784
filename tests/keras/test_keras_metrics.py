"""Metrics that are the user's own, and such as do not add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.keras.beside import expect_as_keras, expect_same_history, fits, one_device, rows, small, trained

import keras
from keras import layers, ops
from trainband.keras import distribute

X, Y = rows()


class Near(keras.metrics.Metric):  # type: ignore[misc]
    """How many of the right class's logits are above 0: it adds up."""

    def __init__(self, name: str = "near") -> None:
        super().__init__(name=name)
        self.hits = self.add_variable((), "zeros", name="hits")
        self.count = self.add_variable((), "zeros", name="count", dtype="int32")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        del sample_weight
        right = ops.take_along_axis(y_pred, ops.cast(ops.reshape(y_true, (-1, 1)), "int32"), axis=1)
        self.hits.assign_add(ops.sum(ops.cast(right > 0, "float32")))
        self.count.assign_add(ops.shape(y_pred)[0])

    def result(self) -> Any:
        return self.hits / ops.maximum(ops.cast(self.count, "float32"), 1.0)


class Largest(keras.metrics.Metric):  # type: ignore[misc]
    """The largest logit so far: it does not add up."""

    def __init__(self, name: str = "largest", begin: float = 0.0) -> None:
        super().__init__(name=name)
        self.begin = begin
        self.most = self.add_variable((), keras.initializers.Constant(begin), name="most")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        del y_true, sample_weight
        self.most.assign(ops.maximum(self.most, ops.max(y_pred)))

    def reset_state(self) -> None:
        self.most.assign(self.begin)

    def result(self) -> Any:
        return self.most.value


def test_one_of_ones_own_that_adds_up() -> None:
    _, ours = expect_as_keras(lambda: small(metrics=["accuracy", Near()]), fits(X, Y), history_rtol=1e-5)
    assert "near" in ours.history.history


@pytest.mark.parametrize("begin", [0.0, -np.inf])
def test_one_that_does_not_is_shown_as_its_mean_and_said_so(begin: float) -> None:
    said: list[str] = []
    batches = []

    class Each(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's form
            batches.append(float(np.max(self.model.predict_on_batch(X[batch * 16 : batch * 16 + 16]))))

    def fit(model: Any) -> Any:
        distribute(model, one_device(), say=said.append)
        return fits(X, Y, epochs=1, shuffle=False, validation_data=(X, Y), callbacks=[Each()])(model)

    model, history = trained(lambda: small(metrics=["accuracy", Largest(begin=begin)]), fit)
    assert history["largest"][0] == pytest.approx(np.mean(batches), rel=1e-5)
    assert history["val_largest"][0] == pytest.approx(float(model.predict(X, verbose=0).max()), rel=1e-5)
    assert [
        line for line in said if "the metric largest of" in line and "training shows its mean over the batches" in line
    ]
    _, expected = trained(small, fits(X, Y, epochs=1, shuffle=False))
    expect_same_history(expected, {name: history[name] for name in expected})


def test_metrics_of_keras_that_have_states_of_their_own() -> None:
    """Confusion matrices, thresholds, and results that are many numbers."""

    def make() -> Any:
        model = keras.Sequential([layers.Input((6,)), layers.Dense(3, activation="softmax")])
        model.compile(
            "sgd",
            "categorical_crossentropy",
            metrics=[
                keras.metrics.AUC(20),
                keras.metrics.Precision(),
                keras.metrics.F1Score(average="macro"),
                keras.metrics.R2Score(),
                keras.metrics.TopKCategoricalAccuracy(2),
                keras.metrics.CosineSimilarity(),
            ],
            weighted_metrics=["mae"],
        )
        return model

    expect_as_keras(make, fits(X, np.eye(3, dtype="float32")[Y]), 2e-5, history_rtol=1e-5)
