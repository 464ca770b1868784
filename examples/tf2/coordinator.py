"""A training loop of one's own on parameter servers: the coordinator schedules steps that the workers run."""

import json
import sys

import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc", start=True
    )
    server.join()
    sys.exit(0)

EPOCHS, STEPS, BATCH = 3, 30, 16
VOCABULARY = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]

strategy = tf.distribute.experimental.ParameterServerStrategy(
    resolver, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(1)
)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

random = np.random.RandomState(1)
chosen = random.randint(len(VOCABULARY), size=(300, 3))
IDS, LABELS = chosen.astype(np.int64), (chosen[:, :1] == 0).astype(np.float32) + (chosen[:, 1:2] == 0)
LABELS = np.minimum(LABELS, 1.0).astype(np.float32)

with strategy.scope():
    ids = tf.keras.layers.Input(shape=(3,), dtype="int64")
    embedded = tf.keras.layers.Embedding(len(VOCABULARY), 8)(ids)
    hidden = tf.keras.layers.Flatten()(embedded)
    output = tf.keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = tf.keras.Model(ids, output)
    optimizer = tf.keras.optimizers.legacy.RMSprop(learning_rate=0.02)
    accuracy = tf.keras.metrics.Accuracy()


def dataset_fn(_):
    dataset = tf.data.Dataset.from_tensor_slices((IDS, LABELS))
    return dataset.shuffle(300, seed=2).batch(BATCH, drop_remainder=True).repeat()


@tf.function
def step_fn(iterator):
    def replica_fn(batch, labels):
        with tf.GradientTape() as tape:
            predicted = model(batch, training=True)
            per_example = tf.keras.losses.BinaryCrossentropy(reduction=tf.keras.losses.Reduction.NONE)(
                labels, predicted
            )
            loss = tf.nn.compute_average_loss(per_example)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(labels, tf.cast(tf.greater(predicted, 0.5), tf.float32))
        return loss

    batch, labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(dataset_fn)


per_worker_iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
for epoch in range(EPOCHS):
    accuracy.reset_states()
    for _ in range(STEPS):
        coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()
    print("Finished epoch %d, accuracy is %f." % (epoch, accuracy.result().numpy()))

loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
result = {"loss": float(loss.fetch()), "accuracy": float(accuracy.result()), "steps": int(optimizer.iterations.numpy())}
coordinator.join()
right = np.mean((model(IDS).numpy() > 0.5) == (LABELS > 0.5))
print("RESULT " + json.dumps({**result, "right": float(right), "done": bool(coordinator.done())}))
