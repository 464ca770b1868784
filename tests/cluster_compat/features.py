"""A script of TensorFlow 1 with what is not in the examples: the same by itself and with one worker on a ps.

Momentum on looked-up rows, a learning rate that is fed, batch normalisation's averages, a variable that is assigned
between the steps, local metrics, a counter that is added to, an assertion, and a loop.
"""

import sys
from typing import Any

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "")
flags.DEFINE_string("worker_hosts", "", "")
flags.DEFINE_string("job_name", "worker", "")
flags.DEFINE_integer("task_index", 0, "")
flags.DEFINE_string("values", "", "")
flags.DEFINE_boolean("double", False, "")
FLAGS = flags.FLAGS


def build(random: Any, dtype: Any) -> dict[str, Any]:
    ids = tf.placeholder(tf.int32, [None], name="ids")
    y = tf.placeholder(dtype, [None], name="y")
    rate = tf.placeholder(dtype, [], name="rate")
    table = tf.get_variable("table", initializer=tf.constant(random.normal(size=(12, 4)), dtype))
    w = tf.get_variable("w", initializer=tf.constant(random.normal(size=(4,)), dtype))
    scale = tf.get_variable("scale", [], dtype, tf.ones_initializer(), trainable=False)
    seen = tf.get_variable("seen", [], dtype, tf.zeros_initializer(), trainable=False)
    rows = tf.layers.batch_normalization(tf.nn.embedding_lookup(table, ids), training=True, momentum=0.8)
    _, total = tf.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, t + rows * w), [0, tf.zeros_like(rows)])
    prediction = tf.reduce_sum(total, 1) * scale
    loss = tf.reduce_mean(tf.square(prediction - y))
    mean, update_mean = tf.metrics.mean(loss)
    step = tf.train.get_or_create_global_step()
    checks = [tf.Assert(tf.reduce_all(ids < 12), [ids])]
    more = tf.get_collection(tf.GraphKeys.UPDATE_OPS) + checks + [seen.assign_add(tf.cast(tf.size(ids), dtype))]
    with tf.control_dependencies(more):
        train = tf.train.MomentumOptimizer(rate, 0.9).minimize(loss, global_step=step)
    halve = scale.assign(scale * 0.5)
    return {
        "ids": ids, "y": y, "rate": rate, "train": train, "loss": loss, "update_mean": update_mean, "mean": mean,
        "halve": halve, "step": step,
    }  # fmt: skip


def main(_: Any) -> None:
    target, device = "", None
    if FLAGS.worker_hosts:
        cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
        server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
        if FLAGS.job_name == "ps":
            server.join()
            print("this is never reached")
        target = server.target
        device = tf.train.replica_device_setter(cluster=cluster)
    random = np.random.RandomState(0)
    with tf.device(device):
        model = build(random, tf.float64 if FLAGS.double else tf.float32)
    with tf.Session(target) as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for i in range(20):
            feed = {
                model["ids"]: random.randint(0, 10, 6),
                model["y"]: random.normal(size=6),
                model["rate"]: 0.002 if i < 10 else 0.001,
            }
            _, loss, _, _ = session.run([model["train"], model["loss"], model["update_mean"], model["step"]], feed)
            if i == 9 and FLAGS.task_index == 0:
                session.run(model["halve"])
            if i == 9 and target:  # a job keeps its values, and gives what else is fetched
                assert session.run([tf.global_variables_initializer(), model["step"]])[1] > 9
        mean = session.run(model["mean"])
        values = session.run(
            {v.op.name.replace("/", "."): v for v in tf.global_variables() if "Momentum" not in v.op.name}
        )
        print("global step", session.run(model["step"]))
        np.savez(FLAGS.values % FLAGS.task_index, mean=mean, loss=loss, **values)
    sys.stdout.flush()


if __name__ == "__main__":
    tf.app.run()
