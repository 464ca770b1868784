"""One task of TensorFlow 2's own ps/worker runtime: between-graph replication, as its users write it.

The network is 784-100-10 with ReLU, the loss softmax cross entropy, the optimizer Adam, all variables on the ps;
batches are float32, given by feed_dict. There are no summaries and no checkpoints, and the non-chief looks for the
model every second (TensorFlow's default is every 30 s).

It keeps the contract of `bench.ps_mnist`, which see. It needs TensorFlow and NumPy, and nothing of trainband.

Source: TensorFlow's tools/dist_test/python/mnist_replica.py, whose form is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf

HIDDEN = 100


def main() -> None:
    """Run the task that the flags name; a ps serves until it is killed."""
    flags = parse_flags()
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    cluster = tf.train.ClusterSpec({"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=flags.job_name, task_index=flags.task_index)
    if flags.job_name == "ps":
        server.join()
    print(json.dumps(work(flags, cluster, server)), flush=True)


def parse_flags() -> argparse.Namespace:
    """Read the flags of the contract."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--train_steps", type=int, default=10_000)
    parser.add_argument("--warm_up_steps", type=int, default=200)
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=0.01)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--marks", type=Path, required=True)
    parser.add_argument("--sync", action="store_true")
    return parser.parse_args()


def work(flags: argparse.Namespace, cluster: Any, server: Any) -> dict[str, Any]:
    """Train to the global step train_steps together with the other workers, and say how fast it went."""
    workers = len(flags.worker_hosts.split(","))
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

    data = np.load(flags.data)
    batches = make_batches(as_floats(data["train_images"]), data["train_labels"], flags.batch_size, flags.task_index)
    fetches = (model["train"], model["global_step"])
    images, labels = model["images"], model["labels"]

    mark(flags, "ready")
    wait_for_all(flags, workers)
    step = 0
    while step < flags.warm_up_steps:
        x, y = next(batches)
        _, step = session.run(fetches, feed_dict={images: x, labels: y})
    begin_step, begin_s = step, time.perf_counter()
    mark(flags, "begin")
    while step < flags.train_steps:
        x, y = next(batches)
        _, step = session.run(fetches, feed_dict={images: x, labels: y})
    wall_s = time.perf_counter() - begin_s
    mark(flags, "end")

    feed = {images: as_floats(data["test_images"]), labels: data["test_labels"]}
    loss, accuracy = session.run((model["loss"], model["accuracy"]), feed_dict=feed)
    return {
        "task": f"worker:{flags.task_index}",
        "steps": int(step - begin_step),
        "wall_s": wall_s,
        "steps_per_s": float((step - begin_step) / wall_s),
        "loss": float(loss),
        "accuracy": float(accuracy),
    }


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
    if flags.sync:
        optimizer = tf.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate=workers, total_num_replicas=workers)
    model["train"] = optimizer.minimize(loss, global_step=global_step)
    if flags.sync:
        is_chief = flags.task_index == 0
        model["synchronous"] = {
            "local_init": optimizer.chief_init_op if is_chief else optimizer.local_step_init_op,
            "ready": optimizer.ready_for_local_init_op,
            "queue_runner": optimizer.get_chief_queue_runner(),
            "init_tokens": optimizer.get_init_tokens_op(),
        }
    return model


def as_floats(images: Any) -> Any:
    """Turn uint8[n, 28, 28] into float32[n, 784] of 0..1."""
    return images.reshape(len(images), -1).astype(np.float32) / 255


def make_batches(images: Any, labels: Any, size: int, seed: int) -> Any:
    """Yield batches for ever; each epoch is shuffled as a whole, then cut up, which is the fastest here."""
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(labels))
        shuffled_images, shuffled_labels = images[order], labels[order]
        for start in range(0, len(labels) - size + 1, size):
            yield shuffled_images[start : start + size], shuffled_labels[start : start + size]


def mark(flags: argparse.Namespace, moment: str) -> None:
    """Tell the bench that this worker is at a moment."""
    (flags.marks / f"worker-{flags.task_index}.{moment}").touch()


def wait_for_all(flags: argparse.Namespace, workers: int) -> None:
    """Wait until all workers are ready, so that none trains alone; the bench ends us if one never is."""
    while not all((flags.marks / f"worker-{index}.ready").exists() for index in range(workers)):
        time.sleep(0.001)


if __name__ == "__main__":
    main()
