"""One worker of TensorFlow's MultiWorkerMirroredStrategy: the gradients are averaged by a ring over gRPC.

A loop of its own, as TensorFlow's guide to multi-worker training writes it, not Keras's fit (which cannot do this since
Keras 3). With ``--steps_a_call``, one call of the traced function takes that many steps, with no Python between them.

It keeps the contract of `bench.allreduce`, which see. It needs TensorFlow and NumPy, and nothing of trainband.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from bench.peers.steps import CHANNELS, CLASSES, HIDDEN, SHAPES, Part, make_peer_parser


def main() -> None:
    """Run the worker that the flags name."""
    parser = make_peer_parser(__doc__)
    parser.add_argument("--steps_a_call", type=int, default=1)
    flags = parser.parse_args()
    part = Part(flags, flags.task_index)
    hosts = flags.worker_hosts.split(",")
    tf.config.threading.set_intra_op_parallelism_threads(flags.threads)
    tf.config.threading.set_inter_op_parallelism_threads(flags.threads)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": hosts}), task_type="worker", task_id=part.index, rpc_layer="grpc"
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    train(part, strategy, flags.model, flags.learning_rate, flags.steps_a_call)
    part.wait_for_all(len(hosts))
    os._exit(0)  # TensorFlow's own end waits for workers that have gone, or complains about them


def train(part: Part, strategy: Any, model: str, learning_rate: float, steps_a_call: int) -> None:
    """Train, evaluate and say how it went."""
    with strategy.scope():
        network = make_network(model)
        optimizer = tf.keras.optimizers.Adam(learning_rate)
        optimizer.build(network.trainable_variables)

    def mean_loss(images: Any, labels: Any) -> Any:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=network(images))
        return tf.reduce_mean(losses)

    def replica_step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            # The optimizer adds the workers' gradients up.
            loss = mean_loss(images, labels) / strategy.num_replicas_in_sync
        variables = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def one_step(images: Any, labels: Any) -> None:
        strategy.run(replica_step, args=(images, labels))

    def many_steps(images: Any, labels: Any) -> None:
        for number in tf.range(steps_a_call):
            strategy.run(replica_step, args=(images[number], labels[number]))

    if steps_a_call == 1:
        function = tf.function(one_step)
        batches = [tuple(tf.constant(array) for array in batch) for batch in part.batches]
    else:
        function = tf.function(many_steps)
        taken = [part.batches[number % len(part.batches)] for number in range(steps_a_call)]
        batches = [tuple(tf.constant(np.stack(arrays)) for arrays in zip(*taken, strict=True))]
    part.run(lambda number: function(*batches[number % len(batches)]), lambda: None, steps_a_call=steps_a_call)
    part.write_result(float(mean_loss(*(tf.constant(array) for array in part.test))))


def make_network(model: str) -> Any:
    """Make the network; the layers start from Glorot's uniform values."""
    tf.random.set_seed(0)
    layers = tf.keras.layers
    middle = [layers.Dense(HIDDEN, activation="relu")]
    if model == "convnet":
        middle = [layers.Conv2D(many, 3, strides=2, padding="same", activation="relu") for many in CHANNELS]
        middle.append(layers.Flatten())
    return tf.keras.Sequential([tf.keras.Input(SHAPES[model]), *middle, layers.Dense(CLASSES)])


if __name__ == "__main__":
    main()
