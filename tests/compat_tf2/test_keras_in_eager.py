"""Keras's layers, losses and optimizers in a script's own training loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2 as tf
from trainband.compat.tf2.eager.deferred import DEFERRED

X = np.random.RandomState(2).normal(size=(16, 8)).astype(np.float32)
Y = np.random.RandomState(3).randint(3, size=16).astype(np.int32)


def model() -> Any:
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Sequential(
        [
            tf.keras.Input((8,)),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dense(3),
        ]
    )


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
def test_a_loop_trains_as_fit_does(traced: bool) -> None:
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    fitted = model()
    fitted.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss=loss_fn)
    fitted.fit(X, Y, batch_size=16, epochs=5, shuffle=False, verbose=0)

    own, optimizer = model(), tf.keras.optimizers.Adam(0.01)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, own(images, training=True))
        gradients = tape.gradient(loss, own.trainable_variables)
        optimizer.apply_gradients(zip(gradients, own.trainable_variables, strict=True))
        return loss

    run = tf.function(step) if traced else step
    compiled = []
    for _ in range(5):
        run(tf.constant(X), tf.constant(Y))
        compiled.append(DEFERRED.programs_compiled)
    assert compiled[2] == compiled[4]
    assert int(optimizer.iterations.numpy()) == 5
    for one, other in zip(own.weights, fitted.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-4, atol=2e-5, err_msg=one.path)
    np.testing.assert_allclose(own(X).numpy(), fitted.predict(X, verbose=0), rtol=1e-3, atol=1e-4)


def test_a_layer_of_a_scripts_own_calls_operations() -> None:
    class Scaled(tf.keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, inputs: Any) -> Any:
            return tf.nn.relu(inputs) * self.scale

    layer = Scaled()
    x = tf.constant([[1.0, -2.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x) * 3.0)
    (gradient,) = tape.gradient(loss, layer.trainable_variables)
    assert (float(loss), gradient.numpy().tolist()) == (3.0, [3.0, 0.0])
