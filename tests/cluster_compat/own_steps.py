"""What `fit` makes of a model with a `train_step` of its own under a strategy, as JSON. Run by the tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import trainband.compat.tf2 as tf

X = np.random.RandomState(0).normal(size=(44, 6)).astype(np.float32)
Y = np.random.RandomState(1).randint(3, size=44)
FIRST = [np.random.RandomState(2).normal(size=shape).astype(np.float32) for shape in [(6, 8), (8,), (8, 3), (3,)]]


class Own(tf.keras.Model):  # type: ignore[misc]
    """A classifier that makes its steps itself."""

    def train_step(self, data: Any) -> Any:
        """One step."""
        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            losses = tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=12)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.compiled_metrics.update_state(y, logits)
        return {metric.name: metric.result() for metric in self.metrics}


def main(strategy_name: str, folder: str) -> None:
    """Trains on global batches of 12, of which the last has 8, and prints what comes of it."""
    strategy = getattr(tf.distribute, strategy_name)()
    with strategy.scope():
        inputs = tf.keras.Input((6,))
        hidden = tf.keras.layers.Dense(8, activation="tanh")(inputs)
        model = Own(inputs, tf.keras.layers.Dense(3)(hidden))
        model.compile(optimizer=tf.keras.optimizers.Adam(0.01), metrics=["sparse_categorical_accuracy"])
    model.set_weights(FIRST)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(12)
    saving = tf.keras.callbacks.ModelCheckpoint(str(Path(folder) / "{epoch}"), save_weights_only=True)
    history = model.fit(data, epochs=2, verbose=0, callbacks=[saving]).history
    model.fit(X, Y, batch_size=12, shuffle=False, verbose=0)
    found = {
        "hits": history["sparse_categorical_accuracy"],
        "weights": [one.tolist() for one in model.get_weights()],
        "replicas": strategy.num_replicas_in_sync,
    }
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
