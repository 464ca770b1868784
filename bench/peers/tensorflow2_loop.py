"""A training loop of one's own on the workers of TF_CONFIG, as users of TensorFlow 2 write it: 784-128-10 and Adam."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bench.peers.eager_contract import digits, parse_flags, timed


def main() -> None:
    """Train as the flags say, and say how fast it went."""
    flags = parse_flags(__doc__)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    batch_size = flags.batch_size * strategy.num_replicas_in_sync
    dataset = tf.data.Dataset.from_tensor_slices(digits(flags.data)).repeat().batch(batch_size)
    distributed = strategy.experimental_distribute_dataset(dataset)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(128, activation="relu", input_shape=(784,)), tf.keras.layers.Dense(10)]
        )
        optimizer = tf.keras.optimizers.Adam()
        loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.NONE
        )

    def replica_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = loss_fn(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(images: Any, labels: Any) -> Any:
        losses = strategy.run(replica_step, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    timed((train_step(images, labels) for images, labels in distributed), flags)


if __name__ == "__main__":
    main()
