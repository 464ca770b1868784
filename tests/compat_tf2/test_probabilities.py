"""Losses of logits that are given probabilities, as Keras 2 has them."""

from __future__ import annotations

import numpy as np
import pytest

import trainband.compat.tf2 as tf

RANDOM = np.random.RandomState(0)
X, Y = RANDOM.rand(64, 8).astype("float32"), RANDOM.randint(3, size=64).astype("int32")


def test_a_loss_of_logits_after_a_softmax_is_that_of_probabilities() -> None:
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(3, activation="softmax")])
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.warns(UserWarning, match="does not represent logits"):
        model.compile("sgd", loss_fn)
    model.set_weights([np.ones((8, 3)) * np.arange(3) * 0.1, np.zeros(3)])
    # TensorFlow 2.21 with Keras 2 gives these.
    assert float(loss_fn(Y, model(X))) == pytest.approx(1.1485523, rel=1e-5)
    losses = model.fit(X, Y, batch_size=64, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert losses == pytest.approx([1.1485523, 1.1475039], rel=1e-5)
    logits = tf.keras.Sequential([tf.keras.layers.Dense(3)])
    logits(X)
    logits.set_weights([np.ones((8, 3)) * np.arange(3) * 0.1, np.zeros(3)])
    assert float(loss_fn(Y, logits(X))) == pytest.approx(1.1485523, rel=1e-5)
