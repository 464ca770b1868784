"""Datasets made for each input pipeline from its InputContext, and a compiled loop over an iterator."""

import json

import numpy as np
import tensorflow as tf

GLOBAL_BATCH, STEPS, EPOCHS = 24, 5, 3

strategy = tf.distribute.MultiWorkerMirroredStrategy(
    communication_options=tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
)
random = np.random.RandomState(1)
X = random.normal(size=(240, 6)).astype(np.float32)
Y = (X @ random.normal(size=(6, 2)) + 0.5).astype(np.float32)
seen = []


def dataset_fn(context):
    batch_size = context.get_per_replica_batch_size(GLOBAL_BATCH)
    seen.append((context.num_input_pipelines, context.num_replicas_in_sync, batch_size))
    dataset = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y})
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.batch(batch_size, drop_remainder=True).repeat().prefetch(tf.data.experimental.AUTOTUNE)


distributed = strategy.distribute_datasets_from_function(dataset_fn)

with strategy.scope():
    kernel = tf.Variable(np.zeros((6, 2), np.float32), name="kernel")
    bias = tf.Variable(tf.zeros([2]), name="bias")
    steps_made = tf.Variable(
        0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name="steps"
    )
    optimizer = tf.keras.optimizers.SGD(0.02)


def replica_fn(batch):
    with tf.GradientTape() as tape:
        errors = tf.reduce_sum(tf.square(batch["x"] @ kernel + bias - batch["y"]), axis=1)
        loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH)
    gradients = tape.gradient(loss, [kernel, bias])
    optimizer.apply_gradients(zip(gradients, [kernel, bias]))
    steps_made.assign_add(1)
    context = tf.distribute.get_replica_context()
    examples = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(tf.shape(batch["x"])[0], tf.float32))
    return loss, examples


@tf.function
def train_steps(iterator, steps):
    loss, examples = tf.constant(0.0), tf.constant(0.0)
    for _ in tf.range(steps):
        losses, counts = strategy.run(replica_fn, args=(next(iterator),))
        loss = strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        examples = strategy.reduce(tf.distribute.ReduceOp.MEAN, counts, axis=None)
    return loss, examples


iterator = iter(distributed)
for epoch in range(EPOCHS):
    loss, examples = train_steps(iterator, tf.constant(STEPS))
    print("epoch %d: loss %.5f" % (epoch, loss.numpy()))

ones = strategy.run(lambda: tf.constant(1.0))
total = strategy.reduce("SUM", ones, axis=None)
result = {
    "loss": float(loss),
    "examples": float(examples),
    "kernel": float(tf.norm(kernel)),
    "bias": [float(one) for one in bias.numpy()],
    "steps": int(steps_made.numpy()),
    "replicas": float(total),
    "local": len(strategy.experimental_local_results(ones)),
    "pipelines": seen[0][0],
    "batch": seen[0][2],
}
print("RESULT " + json.dumps(result))
