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

from bench.peers.steps import (
    CHANNELS,
    CLASSES,
    EPSILON,
    HIDDEN,
    MOMENTUM,
    PROBLEMS,
    STAGES,
    Part,
    make_peer_parser,
)


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

    def mean_loss(images: Any, labels: Any, *, training: bool) -> Any:
        logits = network(images, training=training)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(losses)

    def replica_step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            # The optimizer adds the workers' gradients up.
            loss = mean_loss(images, labels, training=True) / strategy.num_replicas_in_sync
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
    for variable in network.non_trainable_variables:  # running averages, which each worker takes of its own batches
        values = strategy.run(tf.convert_to_tensor, args=(variable,))
        variable.assign(strategy.reduce(tf.distribute.ReduceOp.MEAN, values, axis=None))
    part.write_result(float(mean_loss(*(tf.constant(array) for array in part.test), training=False)))


def make_network(model: str) -> Any:
    """Make the network; except in ResNet-18, the layers start from Glorot's uniform values."""
    tf.random.set_seed(0)
    layers = tf.keras.layers
    images = tf.keras.Input(PROBLEMS[model].shape)
    if model == "resnet18":
        return tf.keras.Model(images, resnet18(images))
    middle = [layers.Dense(HIDDEN, activation="relu")]
    if model == "convnet":
        middle = [layers.Conv2D(many, 3, strides=2, padding="same", activation="relu") for many in CHANNELS]
        middle.append(layers.Flatten())
    return tf.keras.Sequential([images, *middle, layers.Dense(CLASSES)])


def resnet18(values: Any) -> Any:
    """Return the logits of ResNet-18; its module for JAX says more."""
    layers = tf.keras.layers

    def conv(inputs: Any, channels: int, size: int, stride: int) -> Any:
        padded = layers.ZeroPadding2D(size // 2)(inputs) if size > 1 else inputs
        outputs = layers.Conv2D(channels, size, stride, use_bias=False, kernel_initializer="he_normal")(padded)
        return layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON)(outputs)

    values = layers.ReLU()(conv(values, STAGES[0], 7, 2))
    before = STAGES[0]
    for after in STAGES:
        for stride in (1 if before == after else 2, 1):
            inner = conv(layers.ReLU()(conv(values, after, 3, stride)), after, 3, 1)
            values = layers.ReLU()(inner + (values if before == after else conv(values, after, 1, stride)))
            before = after
    return layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(values))


if __name__ == "__main__":
    main()
