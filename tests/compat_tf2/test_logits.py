"""Crossentropies of probabilities that know their logits: TensorFlow 2.21 with Keras 3.15 gives these numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2 as tf

RANDOM = np.random.RandomState(0)
X, Y = RANDOM.rand(64, 8).astype("float32"), RANDOM.randint(3, size=64).astype("int32")
ONE = np.ones((1, 1), np.float32)
CLIPPED = {"Sigmoid": 15.942385, "Softmax": 16.118095}


def _saturated(activation: str, **settings: Any) -> Any:
    """A layer that gives the wrong class 40 more than the right one."""
    weights = [[40.0]] if activation == "Sigmoid" else [[0.0, 40.0]]
    layer = tf.keras.layers.Dense(len(weights[0]), use_bias=False, activation=activation.lower(), **settings)
    layer.build((None, 1))
    layer.set_weights([np.array(weights, np.float32)])
    return layer


CASES = [
    ("Sigmoid", "BinaryCrossentropy", [[0.0]], [1.0]),
    ("Sigmoid", "binary_crossentropy", [[0.0]], [1.0]),
    ("Sigmoid", "BinaryFocalCrossentropy", [[0.0]], [1.0]),
    ("Softmax", "SparseCategoricalCrossentropy", [0], [-1.0, 1.0]),
    ("Softmax", "CategoricalCrossentropy", [[1.0, 0.0]], [-1.0, 1.0]),
    ("Softmax", "CategoricalCrossentropy", [[1.0, 1.0]], [-1.0, 0.0]),
]


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: tf.function(f)], ids=["eager", "function"])
@pytest.mark.parametrize(("activation", "loss", "y", "gradient"), CASES)
def test_a_saturated_unit_has_the_loss_and_gradient_of_its_logits(
    activation: str, loss: str, y: Any, gradient: Any, wrap: Callable[[Any], Any]
) -> None:
    layer, found_loss = _saturated(activation), getattr(tf.keras.losses, loss)
    of_losses = found_loss() if isinstance(found_loss, type) else found_loss

    def once() -> Any:
        with tf.GradientTape() as tape:
            value = of_losses(tf.constant(y), layer(tf.constant(ONE)))
        return value, tape.gradient(value, layer.trainable_variables[0])

    step = wrap(once)
    for _ in range(3):  # as it stands, traced, and from what was traced
        value, found = step()
        np.testing.assert_allclose(np.asarray(value).ravel(), [40.0])
        np.testing.assert_allclose(np.asarray(found).ravel(), gradient)


@pytest.mark.parametrize("activation", ["Sigmoid", "Softmax"])
def test_fit_trains_and_measures_by_the_logits(activation: str) -> None:
    kind = "Binary" if activation == "Sigmoid" else "SparseCategorical"
    metric = getattr(tf.keras.metrics, f"{kind}Crossentropy")(name="measured")
    model = tf.keras.Sequential([tf.keras.Input((1,)), _saturated(activation)])
    model.compile("sgd", getattr(tf.keras.losses, f"{kind}Crossentropy")(), metrics=[metric])
    history = model.fit(np.ones((4, 1)), np.zeros((4, 1)), batch_size=4, epochs=2, verbose=0).history
    # Each weight has a gradient of 1 or -1, and the rate is 0.01.
    assert history["loss"] == pytest.approx([40.0, 39.99 if activation == "Sigmoid" else 39.98], abs=1e-3)
    assert history["loss"] == history["measured"]


@pytest.mark.parametrize("name", ["sigmoid", "softmax"])
def test_the_logits_of_an_operation_are_found_in_a_graph_alone(name: str) -> None:
    operation = getattr(tf.nn, name)
    logits = tf.constant([[40.0]] if name == "sigmoid" else [[0.0, 40.0]])
    kind = tf.keras.losses.BinaryCrossentropy if name == "sigmoid" else tf.keras.losses.CategoricalCrossentropy
    y, loss = tf.constant([[0.0]] if name == "sigmoid" else [[1.0, 0.0]]), kind()
    assert float(loss(y, operation(logits))) == pytest.approx(CLIPPED[name.capitalize()])
    in_graph = tf.function(lambda x: loss(y, operation(x)))
    assert [float(in_graph(logits)) for _ in range(3)] == [40.0] * 3
    if name == "sigmoid":  # nobody's softmax
        other = tf.function(lambda x: tf.keras.losses.categorical_crossentropy([[1.0, 0.0]], operation(x)))
        assert float(other(tf.constant([[0.0, 40.0]]))[0]) == pytest.approx(1.0986123)


def test_logits_are_not_found_across_the_call_of_a_function_or_an_identity() -> None:
    layer, loss, y = _saturated("Sigmoid"), tf.keras.losses.BinaryCrossentropy(), tf.constant([[0.0]])
    p = layer(tf.constant(ONE))
    of_given, giving = tf.function(lambda p: loss(y, p)), tf.function(lambda x: layer(x))
    for _ in range(3):
        assert float(of_given(p)) == pytest.approx(CLIPPED["Sigmoid"])
        assert float(loss(y, giving(tf.constant(ONE)))) == pytest.approx(CLIPPED["Sigmoid"])
    assert float(loss(y, tf.identity(p))) == pytest.approx(CLIPPED["Sigmoid"])
    assert float(loss(y, p)) == 40.0


def test_a_loss_of_logits_after_a_softmax_warns_and_is_that_of_probabilities() -> None:
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(3, activation="softmax")])
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss_fn)
    model.set_weights([np.ones((8, 3)) * np.arange(3) * 0.1, np.zeros(3)])
    with pytest.warns(UserWarning, match="does not represent logits"):
        assert float(loss_fn(Y, model(X))) == pytest.approx(1.1485523, rel=1e-5)
    with pytest.warns(UserWarning, match="does not represent logits"):
        losses = model.fit(X, Y, batch_size=64, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert losses == pytest.approx([1.1485523, 1.1475039], rel=1e-5)
    logits = tf.keras.Sequential([tf.keras.layers.Dense(3)])
    logits(X)
    logits.set_weights([np.ones((8, 3)) * np.arange(3) * 0.1, np.zeros(3)])
    assert float(loss_fn(Y, logits(X))) == pytest.approx(1.1485523, rel=1e-5)
