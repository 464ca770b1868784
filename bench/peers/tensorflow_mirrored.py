"""One worker of TensorFlow's MultiWorkerMirroredStrategy: the gradients are averaged by a ring over gRPC.

A loop of its own, as TensorFlow's guide to multi-worker training writes it, not Keras's fit (which cannot do this since
Keras 3). Every process holds the model and computes the same Adam update.

It keeps the contract of `bench.ps_mnist`, which see, for the job `worker`. It needs TensorFlow and NumPy, and nothing
of trainband.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from bench.peers.contract import HIDDEN, Part, parse_flags


def main() -> None:
    """Run the worker that the flags name."""
    flags = parse_flags(__doc__)
    part = Part(flags)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": part.hosts}), task_type="worker", task_id=part.index, rpc_layer="grpc"
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    work(part, strategy, flags.learning_rate)
    part.wait_for_all("done")
    os._exit(0)  # TensorFlow's own end waits for workers that have gone, or complains about them


def work(part: Part, strategy: Any, learning_rate: float) -> None:
    """Train, evaluate and say how it went."""
    with strategy.scope():
        network = make_network()
        optimizer = tf.keras.optimizers.Adam(learning_rate)
        optimizer.build(network.trainable_variables)

    def mean_loss(images: Any, labels: Any) -> Any:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=network(images))
        return tf.reduce_mean(losses)

    def train(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = mean_loss(images, labels) / len(part.hosts)  # the optimizer adds the workers' gradients up
        variables = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step = tf.function(lambda images, labels: strategy.run(train, args=(images, labels)))
    part.train_together(
        lambda images, labels: step(tf.convert_to_tensor(images), tf.convert_to_tensor(labels)), lambda: None
    )
    images, labels = part.test()
    logits = network(images)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    hits = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), tf.cast(labels, tf.int32))
    part.print_result(float(loss), float(tf.reduce_mean(tf.cast(hits, tf.float32))))


def make_network() -> Any:
    """Make the 784-100-10 network; Dense starts from Glorot's uniform values."""
    tf.random.set_seed(0)
    return tf.keras.Sequential(
        [tf.keras.Input((784,)), tf.keras.layers.Dense(HIDDEN, activation="relu"), tf.keras.layers.Dense(10)]
    )


if __name__ == "__main__":
    main()
