"""Two replicas on one CPU: how batches are divided, what is averaged, and what each replica keeps to itself."""

import json

import numpy as np
import tensorflow as tf

cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

GLOBAL_BATCH = 10
random = np.random.RandomState(1)
X = random.normal(size=(43, 6)).astype(np.float32)
Y = (X @ random.normal(size=(6, 1))).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(GLOBAL_BATCH)
distributed = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(8, activation="tanh", input_shape=(6,)),
            tf.keras.layers.BatchNormalization(momentum=0.9),
            tf.keras.layers.Dense(1),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
    error = tf.keras.metrics.MeanAbsoluteError()
    seen = tf.Variable(
        0.0, trainable=False, synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM, name="seen",
    )  # fmt: skip
model.set_weights([random.normal(scale=0.3, size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])


def replica_fn(features, targets):
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        losses = tf.reduce_sum(tf.square(predictions - targets), axis=1)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    error.update_state(targets, predictions)
    seen.assign_add(tf.cast(tf.shape(features)[0], tf.float32))
    return loss, tf.shape(features)[0]


@tf.function
def train_step(features, targets):
    losses, counts = strategy.run(replica_fn, args=(features, targets))
    return strategy.reduce("SUM", losses, axis=None), counts


divided = []
for epoch in range(3):
    total = 0.0
    for features, targets in distributed:
        loss, counts = train_step(features, targets)
        total += float(loss)
        divided.append([int(count) for count in strategy.experimental_local_results(counts)])

weights = model.get_weights()
ids = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
result = {
    "replicas": strategy.num_replicas_in_sync,
    "divided": divided[-5:],
    "loss": total,
    "error": float(error.result()),
    "seen": float(seen.read_value()),
    "moving_mean": float(np.abs(weights[4]).sum()),
    "moving_variance": float(weights[5].sum()),
    "kernel": float(np.abs(weights[0]).sum()),
    "ids": sorted(int(one) for one in strategy.experimental_local_results(ids)),
}
print("RESULT " + json.dumps(result))
