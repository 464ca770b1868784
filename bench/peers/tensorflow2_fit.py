"""Keras's `fit` on the parameter servers of TF_CONFIG, as users of TensorFlow 2 write it: 784-128-10 and Adam."""

from __future__ import annotations

import json
import time
from typing import Any

import tensorflow as tf

from bench.peers.eager_contract import digits, parse_flags


def main() -> None:
    """Serve if this is a worker or a ps; otherwise train as the flags say, and say how fast it went."""
    flags = parse_flags(__doc__)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        server.join()
        return
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    images, labels = digits(flags.data)

    def dataset_fn(_: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(1000).repeat()
        return dataset.batch(flags.batch_size).prefetch(2)

    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(128, activation="relu", input_shape=(784,)), tf.keras.layers.Dense(10)]
        )
        loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.legacy.Adam(), loss=loss_fn)

    ends: list[float] = []

    class Times(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            del epoch, logs
            ends.append(time.perf_counter())

    # The first epoch warms up; the others are measured.
    epochs = 1 + max(1, flags.train_steps // flags.warm_up_steps)
    history = model.fit(
        tf.keras.utils.experimental.DatasetCreator(dataset_fn),
        epochs=epochs,
        steps_per_epoch=flags.warm_up_steps,
        callbacks=[Times()],
        verbose=0,
    )
    steps_per_s = (epochs - 1) * flags.warm_up_steps / (ends[-1] - ends[0])
    print(json.dumps({"steps_per_s": steps_per_s, "loss": float(history.history["loss"][-1])}), flush=True)


if __name__ == "__main__":
    main()
