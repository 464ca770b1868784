"""A loop with a tape under MirroredStrategy in one process, as users of TensorFlow 2 write it: 784-128-10 and Adam."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bench.peers.eager_contract import digits, parse_flags, timed


def main() -> None:
    """Train as the flags say, and say how fast it went."""
    flags = parse_flags(__doc__)
    strategy = tf.distribute.MirroredStrategy()
    images, labels = digits(flags.data)
    dataset = tf.data.Dataset.from_tensor_slices({"images": images, "labels": labels}).batch(flags.batch_size)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(128, activation="relu", input_shape=(784,)),
                tf.keras.layers.Dense(10, activation="softmax"),
            ]
        )
        optimizer = tf.keras.optimizers.Adam()
        loss_fn = tf.keras.losses.SparseCategoricalCrossentropy()

    def steps() -> Any:
        while True:
            for batch in dataset:
                with tf.GradientTape() as tape:
                    logits = model(batch["images"])
                    loss = loss_fn(batch["labels"], logits)
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                yield loss

    timed(steps(), flags)


if __name__ == "__main__":
    main()
