"""`model.fit` of Keras 2 (`tf_keras`) on TensorFlow: in one process, or under one of TensorFlow's own strategies.

Keras 3 cannot do the latter: its `fit` ends in an exception under both. A program of `bench.keras_fit`, which see. It
needs TensorFlow, tf_keras and NumPy, and nothing of trainband.
"""

from __future__ import annotations

import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_USE_LEGACY_KERAS"] = "1"

from typing import Any

import tensorflow as tf
import tf_keras as keras

from bench.peers.keras_epochs import BATCH_SIZE, make_clock, make_model, make_parser, read


def main() -> None:
    """Run the task that the flags name."""
    parser = make_parser(__doc__)
    parser.add_argument("--strategy", choices=["ps", "mirrored"], required=True)
    parser.add_argument("--cluster", required=True, help="as JSON: addresses by job")
    parser.add_argument("--job_name", required=True)
    parser.add_argument("--task_index", type=int, required=True)
    flags = parser.parse_args()
    cluster = tf.train.ClusterSpec(json.loads(flags.cluster))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type=flags.job_name, task_id=flags.task_index, rpc_layer="grpc"
    )
    if flags.strategy == "ps" and flags.job_name in ("ps", "worker"):
        server = tf.distribute.Server(cluster, job_name=flags.job_name, task_index=flags.task_index, protocol="grpc")
        server.join()
    if flags.strategy == "ps":
        strategy = tf.distribute.ParameterServerStrategy(resolver)
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    chief = flags.job_name == "chief" or (flags.strategy == "mirrored" and flags.task_index == 0)
    images, labels = read(flags)

    def batches(_: Any = None) -> Any:
        data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images)).repeat()
        return data.batch(BATCH_SIZE).prefetch(2)

    with strategy.scope():
        model = make_model(keras)
    if flags.strategy == "ps":
        data = keras.utils.experimental.DatasetCreator(batches)
    else:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        data = strategy.experimental_distribute_dataset(
            batches().unbatch().batch(BATCH_SIZE * strategy.num_replicas_in_sync).with_options(options)
        )
    callbacks = [make_clock(keras, flags)] if chief else []
    model.fit(data, steps_per_epoch=flags.steps, epochs=flags.epochs, verbose=flags.verbose, callbacks=callbacks)
    os._exit(0)  # TensorFlow's own end waits for tasks that have gone


if __name__ == "__main__":
    main()
