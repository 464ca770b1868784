"""What replicas of TensorFlow 2's strategies come to, as JSON. Run as a script by the tests, in one process or more."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import trainband.compat.tf2 as tf

STEPS = 4
X = np.random.RandomState(0).normal(size=(44, 6)).astype(np.float32)
Y = np.random.RandomState(1).randint(3, size=44)
FIRST = [np.random.RandomState(2).normal(size=shape).astype(np.float32) for shape in [(6, 8), (8,), (8, 3), (3,)]]


def main(strategy_name: str, how: str) -> None:
    """Trains on global batches of 12, of which the last has 8, and prints what comes of it."""
    strategy = getattr(tf.distribute, strategy_name)()
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((6,)), tf.keras.layers.Dense(8, activation="tanh"), tf.keras.layers.Dense(3)]
        )
        begun = float(np.abs(model.get_weights()[0]).sum())
        model.set_weights(FIRST)
        optimizer = tf.keras.optimizers.Adam(0.01)
        examples = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        aggregation = tf.VariableAggregation
        added = tf.Variable(0.0, trainable=False, aggregation=aggregation.SUM)
        averaged = tf.Variable(0.0, trainable=False, aggregation=aggregation.MEAN)
        first = tf.Variable(0, trainable=False, aggregation=aggregation.ONLY_FIRST_REPLICA)
        steps = tf.Variable(0, trainable=False)

    def step(batch: Any) -> Any:
        images, labels = batch
        with tf.GradientTape() as tape:
            losses = examples(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=12)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        added.assign_add(tf.reduce_sum(losses))
        averaged.assign(tf.cast(tf.shape(labels)[0], tf.float32))
        context = tf.distribute.get_replica_context()
        first.assign_add(1 + context.replica_id_in_sync_group)
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.shape(labels)[0])
        return loss, tf.cast(tf.argmax(model(images), -1), tf.int32), total

    def both(batch: Any) -> Any:
        loss, classes, total = strategy.run(step, args=(batch,))
        return strategy.reduce("SUM", loss, axis=None), classes, strategy.experimental_local_results(total)[0]

    run = tf.function(both) if how == "function" else both
    losses, found, totals = [], [], []
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(12)
    for _ in range(2):
        for batch in strategy.experimental_distribute_dataset(data):
            loss, classes, total = run(batch)
            losses.append(float(loss))
            totals.append(int(total))
            found.append(strategy.gather(classes, axis=0).numpy().tolist())
            steps.assign_add(1)
    try:
        strategy.run(lambda: steps.assign_add(1))
        refused = ""
    except ValueError as exc:
        refused = str(exc)
    print(
        "RESULT",
        json.dumps(
            {
                "replicas": strategy.num_replicas_in_sync,
                "begun": begun,
                "losses": losses,
                "weights": [one.tolist() for one in model.get_weights()],
                "classes": found,
                "totals": totals,
                "added": float(added),
                "averaged": float(averaged),
                "first": int(first),
                "refused": refused,
            }
        ),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
