"""One task of TensorFlow 2's own ps/worker runtime: between-graph replication, as its users write it.

The network is 784-100-10 with ReLU, the loss softmax cross entropy, the optimizer Adam, all variables on the ps;
batches are float32, given by feed_dict. There are no summaries and no checkpoints, and the non-chief looks for the
model every second (TensorFlow's default is every 30 s).

It keeps the contract of `bench.ps_mnist`, which see. It needs TensorFlow and NumPy, and nothing of trainband.

Source: TensorFlow's tools/dist_test/python/mnist_replica.py, whose form is kept.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow.compat.v1 as tf

from bench.peers.contract import HIDDEN, Part, parse_flags


def main() -> None:
    """Run the task that the flags name; a ps serves until it is killed."""
    flags = parse_flags(__doc__, jobs=("ps", "worker"))
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    cluster = tf.train.ClusterSpec({"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=flags.job_name, task_index=flags.task_index)
    if flags.job_name == "ps":
        server.join()
    work(flags, cluster, server)


def work(flags: argparse.Namespace, cluster: Any, server: Any) -> None:
    """Train to the global step train_steps together with the other workers, and say how fast it went."""
    part = Part(flags)
    workers = len(part.hosts)
    is_chief = flags.task_index == 0
    with tf.device(
        tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{flags.task_index}")
    ):
        model = build_model(flags, workers)
    synchronous = model.get("synchronous", {})
    supervisor = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=None,
        init_op=tf.global_variables_initializer(),
        recovery_wait_secs=1,
        global_step=model["global_step"],
        summary_op=None,
        **(
            {"local_init_op": synchronous["local_init"], "ready_for_local_init_op": synchronous["ready"]}
            if synchronous
            else {}
        ),
    )
    devices = ["/job:ps", f"/job:worker/task:{flags.task_index}"]  # so that a worker need not wait for another one
    session = supervisor.prepare_or_wait_for_session(server.target, config=tf.ConfigProto(device_filters=devices))
    if synchronous and is_chief:
        session.run(synchronous["init_tokens"])
        supervisor.start_queue_runners(session, [synchronous["queue_runner"]])

    batches = part.batches()
    fetches = (model["train"], model["step"])
    images, labels = model["images"], model["labels"]

    part.ready()
    step = 0
    while step < flags.warm_up_steps:
        x, y = next(batches)
        _, step = session.run(fetches, feed_dict={images: x, labels: y})
    part.start_measuring(int(step))
    while step < flags.train_steps:
        x, y = next(batches)
        _, step = session.run(fetches, feed_dict={images: x, labels: y})
    part.end(int(step))

    test_images, test_labels = part.test()
    loss, accuracy = session.run(
        (model["loss"], model["accuracy"]), feed_dict={images: test_images, labels: test_labels}
    )
    part.print_result(float(loss), float(accuracy))


def build_model(flags: argparse.Namespace, workers: int) -> dict[str, Any]:
    """Build the graph: variables on the ps, the rest on this worker."""
    global_step = tf.train.get_or_create_global_step()
    images = tf.placeholder(tf.float32, [None, 784])
    labels = tf.placeholder(tf.int32, [None])
    hidden_kernel = tf.get_variable("hidden/kernel", [784, HIDDEN], initializer=tf.glorot_uniform_initializer())
    hidden_bias = tf.get_variable("hidden/bias", [HIDDEN], initializer=tf.zeros_initializer())
    output_kernel = tf.get_variable("output/kernel", [HIDDEN, 10], initializer=tf.glorot_uniform_initializer())
    output_bias = tf.get_variable("output/bias", [10], initializer=tf.zeros_initializer())
    hidden = tf.nn.relu(tf.nn.xw_plus_b(images, hidden_kernel, hidden_bias))
    logits = tf.nn.xw_plus_b(hidden, output_kernel, output_bias)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    hits = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
    model = {
        "global_step": global_step,
        "images": images,
        "labels": labels,
        "loss": loss,
        "accuracy": tf.reduce_mean(tf.cast(hits, tf.float32)),
    }
    optimizer = tf.train.AdamOptimizer(flags.learning_rate)
    if flags.rule == "sync":
        optimizer = tf.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate=workers, total_num_replicas=workers)
    model["train"] = optimizer.minimize(loss, global_step=global_step)
    model["step"] = global_step
    if flags.rule == "sync":
        is_chief = flags.task_index == 0
        with tf.control_dependencies([model["train"]]):
            # Read earlier, the last step may look like the one before; its worker would then wait for ever for others.
            model["step"] = global_step.read_value()
        model["synchronous"] = {
            "local_init": optimizer.chief_init_op if is_chief else optimizer.local_step_init_op,
            "ready": optimizer.ready_for_local_init_op,
            "queue_runner": optimizer.get_chief_queue_runner(),
            "init_tokens": optimizer.get_init_tokens_op(),
        }
    return model


if __name__ == "__main__":
    main()
