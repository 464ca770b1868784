"""A script of TensorFlow 1 that trains and assigns in many ways: the same by itself and with one worker on ps.

Two models with an optimizer each, of which only one counts steps; a variable that two optimizers train; clipping after
an update, ordered and not; a constraint; and variables that are assigned, added to and scattered to between the steps.
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
FLAGS = flags.FLAGS


def build(random: Any) -> dict[str, Any]:
    def variable(name: str, *shape: int, **more: Any) -> Any:
        return tf.get_variable(name, initializer=tf.constant(random.normal(size=shape), tf.float32), **more)

    rate = tf.placeholder(tf.float32, [], name="rate")
    generator, critic = variable("generator", 4, 2), variable("critic", 2)
    bounded = variable("bounded", 3, constraint=lambda v: tf.clip_by_value(v, -0.5, 0.5))
    table = tf.get_variable("table", initializer=tf.zeros([5, 2]), trainable=False)
    rounds = tf.get_variable("rounds", initializer=0, trainable=False)
    step = tf.train.get_or_create_global_step()
    score = tf.reduce_mean(tf.matmul(tf.matmul(tf.ones([1, 4]), tf.tanh(generator)), critic[:, None]))
    real = tf.reduce_sum(critic * [1.0, -1.0])
    decayed = tf.train.exponential_decay(0.1, step, 5, 0.5)
    return {
        "rate": rate,
        "step": step,
        "generator": generator,
        "critic": tf.train.AdamOptimizer(rate, beta1=0.5).minimize(tf.square(score - real), var_list=[critic]),
        "generate": tf.train.AdamOptimizer(decayed, name="Second").minimize(-score, step, var_list=[generator]),
        "pretrain": tf.train.MomentumOptimizer(0.1, 0.9).minimize(tf.nn.l2_loss(generator), var_list=[generator]),
        "bound": tf.train.GradientDescentOptimizer(0.3).minimize(tf.reduce_sum(tf.sin(bounded)), var_list=[bounded]),
        "clip": critic.assign(tf.clip_by_value(critic, -0.8, 0.8)),
        "shrink": generator.assign(generator * 0.9),
        "scatter": tf.scatter_update(table, [1, 3], [[1.0, 2.0], [3.0, 4.0]]),
        "more": tf.scatter_add(table, [3], [[0.5, 0.5]]),
        "count": tf.assign_add(rounds, 2),
        "twice": tf.assign_add(step, 2),
    }


def main(_: Any) -> None:
    target, device = "", None
    if FLAGS.worker_hosts:
        cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
        server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
        if FLAGS.job_name == "ps":
            tf.Session(server.target)  # serves, as join() does
            print("this is never reached")
        target = server.target
        device = tf.train.replica_device_setter(cluster=cluster)
    with tf.device(device):
        do = build(np.random.RandomState(0))
    variables = {v.op.name: v for v in tf.global_variables() if "/" not in v.op.name and "power" not in v.op.name}
    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(do["pretrain"])
        session.run([do["scatter"], do["count"]])
        for i in range(8):
            session.run(do["critic"], {do["rate"]: 0.1 / (i + 1)})
            session.run(do["clip"])
            session.run([do["critic"], do["count"]], {do["rate"]: 0.2})
            session.run([do["generate"], do["bound"]])
            session.run(do["more"])
            if i % 3 == 0:
                session.run([do["shrink"], do["twice"]])
                do["generator"].load(session.run(do["generator"]) + 0.01, session)
        print("global step", session.run(do["step"]))
        if FLAGS.task_index == 0:
            np.savez(FLAGS.values, **session.run(variables))
    sys.stdout.flush()


if __name__ == "__main__":
    tf.app.run()
