"""A script of TensorFlow 1 whose workers train models of their own and exchange what they have learned with the ps.

Three styles: `downpour` trains a local model for a few steps, pushes the mean gradient, and copies the new values;
`accumulate` adds up gradients in local variables before it pushes them; `elastic` pulls the local model and the shared
one together. Without a cluster it does the same in one process.
"""

from typing import Any

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "")
flags.DEFINE_string("worker_hosts", "", "")
flags.DEFINE_string("job_name", "worker", "")
flags.DEFINE_integer("task_index", 0, "")
flags.DEFINE_string("style", "downpour", "")
flags.DEFINE_string("values", "", "")
FLAGS = flags.FLAGS

WINDOW = 3


def model(variables: list[Any], x: Any, y: Any) -> Any:
    weight, bias = variables
    return tf.reduce_mean(tf.square(tf.reduce_sum(x * weight, 1) + bias - y))


def downpour(shared: list[Any], local: list[Any], x: Any, y: Any, step: Any) -> list[Any]:
    inner = tf.train.MomentumOptimizer(0.05, 0.5)
    pushed: list[Any] = []
    trained: list[Any] = []
    for _ in range(WINDOW):
        with tf.control_dependencies(trained):
            gradients, _ = zip(*inner.compute_gradients(model(local, x, y), var_list=local), strict=True)
            pushed.append(gradients)
            trained = [inner.apply_gradients(zip(gradients, local, strict=True))]
    means = [tf.add_n(list(parts)) / WINDOW for parts in zip(*pushed, strict=True)]
    with tf.control_dependencies(trained):
        push = tf.train.AdamOptimizer(0.05).apply_gradients(zip(means, shared, strict=True), global_step=step)
    with tf.control_dependencies([push]):
        return [tf.group(*(own.assign(whole) for own, whole in zip(local, shared, strict=True)))]


def accumulate(shared: list[Any], local: list[Any], x: Any, y: Any, step: Any) -> list[Any]:
    optimizer = tf.train.AdamOptimizer(0.05)
    gradients = [gradient for gradient, _ in optimizer.compute_gradients(model(shared, x, y), var_list=shared)]
    add = tf.group(*(own.assign_add(gradient / WINDOW) for own, gradient in zip(local, gradients, strict=True)))
    push = optimizer.apply_gradients([(own.value(), whole) for own, whole in zip(local, shared, strict=True)], step)
    with tf.control_dependencies([push]):
        clear = tf.group(*(own.assign(tf.zeros_like(own)) for own in local))
    return [*[add] * WINDOW, clear]


def elastic(shared: list[Any], local: list[Any], x: Any, y: Any, step: Any) -> list[Any]:
    train = tf.train.GradientDescentOptimizer(0.1).minimize(model(local, x, y), var_list=local)
    pulls = []
    for own, whole in zip(local, shared, strict=True):
        difference = 0.4 * (own - whole)
        pulls += [whole.assign_add(difference), own.assign_sub(difference)]
    return [*[train] * WINDOW, tf.group(*pulls, step.assign_add(1))]


def main(_: Any) -> None:
    target, everywhere, here = "", None, None
    if FLAGS.worker_hosts:
        cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
        server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
        if FLAGS.job_name == "ps":
            server.join()
        target, here = server.target, f"/job:worker/task:{FLAGS.task_index}"
        everywhere = tf.train.replica_device_setter(cluster=cluster, worker_device=here)
    with tf.device(everywhere):
        step = tf.train.get_or_create_global_step()
        shared = [tf.Variable(tf.zeros([2]), name="weight"), tf.Variable(0.0, name="bias")]
    with tf.device(here):
        x, y = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.float32, [None])
        kept = [] if FLAGS.style == "elastic" else [tf.GraphKeys.LOCAL_VARIABLES]
        kinds = {"collections": kept, "trainable": False} if kept else {}
        local = [tf.Variable(tf.zeros([2]), name="own_weight", **kinds), tf.Variable(0.0, name="own_bias", **kinds)]
        style = {"downpour": downpour, "accumulate": accumulate, "elastic": elastic}[FLAGS.style]
        runs = style(shared, local, x, y, step)
    random = np.random.RandomState(FLAGS.task_index)
    with tf.train.MonitoredTrainingSession(target, is_chief=FLAGS.task_index == 0) as session:
        seen = session.run(step)
        while seen < 150:
            for operation in runs:
                examples = random.normal(size=(8, 2))
                session.run(operation, {x: examples, y: examples @ [2.0, -1.0] + 0.5})
            seen = session.run(step)
        weight, bias, own = session.run([*shared, local[0]])
    print("trained", np.round([*weight, bias], 1).tolist())
    np.savez(f"{FLAGS.values}{FLAGS.task_index}.npz", weight=weight, bias=bias, own=own)


if __name__ == "__main__":
    tf.app.run()
