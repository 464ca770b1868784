"""Keras's `fit` on parameter servers: workers and ps only serve, and the chief trains from a DatasetCreator."""

import json
import sys

import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()
    sys.exit(0)

partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=256 << 10, max_shards=2)
strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)

random = np.random.RandomState(1)
X = random.normal(size=(640, 10)).astype(np.float32)
Y = (X @ random.normal(size=(10, 1)) > 0).astype(np.float32)


def dataset_fn(input_context):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size=64)
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(640, seed=1).repeat()
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.batch(batch_size).prefetch(2)


with strategy.scope():
    model = tf.keras.models.Sequential(
        [tf.keras.layers.Dense(16, activation="relu", input_shape=(10,)), tf.keras.layers.Dense(1)]
    )
    model.compile(
        optimizer=tf.keras.optimizers.legacy.SGD(learning_rate=0.1),
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.BinaryAccuracy(threshold=0.0)],
        steps_per_execution=5,
    )

creator = tf.keras.utils.experimental.DatasetCreator(dataset_fn)
history = model.fit(creator, epochs=4, steps_per_epoch=20, verbose=2)
losses = history.history["loss"]
logits = np.asarray(model(X))
accuracy = float(np.mean((logits > 0) == (Y > 0)))
print("RESULT " + json.dumps({"first_loss": losses[0], "loss": losses[-1], "accuracy": accuracy}))
