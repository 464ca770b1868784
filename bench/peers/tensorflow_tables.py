"""One task of TensorFlow's ps/worker runtime with an embedding on the ps, as its users write it.

The table is a variable with a partition on each ps. A worker looks up the distinct ids of its batch, which saves
traffic, and Adagrad updates those rows alone (`IndexedSlices`). It keeps the contract of `bench.tables`, and needs
TensorFlow and NumPy, and nothing of trainband. A ps serves until it is killed.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow.compat.v1 as tf

from bench.peers.clicks import BOTTOM, DENSE, DIM, FEATURES, FIRST_ROWS, FIRST_SUM, TOP, Batch, Part, parse_flags


def main() -> None:
    """Run the task that the flags name."""
    flags = parse_flags(__doc__)
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    cluster = tf.train.ClusterSpec({"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=flags.job_name, task_index=flags.task_index)
    if flags.job_name == "ps":
        server.join()
    work(flags, cluster, server)


def work(flags: argparse.Namespace, cluster: Any, server: Any) -> None:
    """Train until the time is over."""
    step = [0]
    part = Part(flags, lambda: step[0])
    worker = f"/job:worker/task:{flags.task_index}"
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=worker)):
        model = build_model(flags)
    supervisor = tf.train.Supervisor(
        is_chief=flags.task_index == 0,
        logdir=None,
        init_op=tf.global_variables_initializer(),
        recovery_wait_secs=1,
        global_step=model["global_step"],
        summary_op=None,
    )
    devices = ["/job:ps", worker]  # so that a worker need not wait for another one
    session = supervisor.prepare_or_wait_for_session(server.target, config=tf.ConfigProto(device_filters=devices))

    def given(batch: Batch) -> dict[Any, Any]:
        return {model["ids"]: batch.ids, model["numbers"]: batch.numbers, model["clicks"]: batch.clicks}

    fetches = (model["train"], model["global_step"])
    for batch in part.batches():
        step[0] = int(session.run(fetches, feed_dict=given(batch))[1])
    losses = [float(session.run(model["loss"], feed_dict=given(batch))) for batch in part.tests()]
    part.print_result(sum(losses) / len(losses))


def build_model(flags: argparse.Namespace) -> dict[str, Any]:
    """Build the graph: variables on the ps, the rest on this worker."""
    global_step = tf.train.get_or_create_global_step()
    ids = tf.placeholder(tf.int64, [None, FEATURES])
    numbers = tf.placeholder(tf.float32, [None, DENSE])
    clicks = tf.placeholder(tf.float32, [None])
    table = tf.get_variable(
        "rows",
        [flags.table, DIM],
        initializer=tf.random_uniform_initializer(0.0, FIRST_ROWS),
        partitioner=tf.fixed_size_partitioner(len(flags.ps_hosts.split(","))),
    )
    distinct, places = tf.unique(tf.reshape(ids, [-1]))
    found = tf.nn.embedding_lookup(table, distinct, partition_strategy="div")
    rows = tf.reshape(tf.gather(found, places), [-1, FEATURES, DIM])

    def dense(name: str, values: Any, size: tuple[int, int]) -> Any:
        kernel = tf.get_variable(f"{name}/kernel", size, initializer=tf.glorot_uniform_initializer())
        bias = tf.get_variable(f"{name}/bias", size[1:], initializer=tf.zeros_initializer())
        return tf.nn.xw_plus_b(values, kernel, bias)

    bottom = dense("middle", tf.nn.relu(dense("bottom", numbers, (DENSE, BOTTOM))), (BOTTOM, DIM))
    total = tf.reduce_sum(rows, 1) + bottom
    crossed = 0.5 * (tf.square(total) - tf.reduce_sum(tf.square(rows), 1) - tf.square(bottom))
    top = tf.nn.relu(dense("top", tf.concat([total, crossed], 1), (2 * DIM, TOP)))
    logits = dense("click", top, (TOP, 1))[:, 0]
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=clicks, logits=logits))
    optimizer = tf.train.AdagradOptimizer(flags.learning_rate, initial_accumulator_value=FIRST_SUM)
    return {
        "global_step": global_step,
        "ids": ids,
        "numbers": numbers,
        "clicks": clicks,
        "loss": loss,
        "train": optimizer.minimize(loss, global_step=global_step),
    }


if __name__ == "__main__":
    main()
