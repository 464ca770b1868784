"""Synchronous training: every update is the mean of all workers' gradients.

Each worker takes its part of a batch of 64, so that the result is that of one process with the whole batch; without
--worker_hosts this is that process.
"""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 60, "Global step to stop at")
flags.DEFINE_string("values", "", "Where the chief writes the final values, as npz")
FLAGS = flags.FLAGS

BATCH = 64


class Final(tf.train.SessionRunHook):
    def __init__(self, fetches, feed_dict):
        self.fetches, self.feed_dict = fetches, feed_dict
        self.values = None

    def end(self, session):
        self.values = session.run(self.fetches, feed_dict=self.feed_dict)


def main(_):
    master, device, workers = "", None, 1
    is_chief = FLAGS.task_index == 0
    if FLAGS.worker_hosts:
        worker_hosts = FLAGS.worker_hosts.split(",")
        workers = len(worker_hosts)
        cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": worker_hosts})
        server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
        if FLAGS.job_name == "ps":
            server.join()
        master = server.target
        device = tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster)

    random = np.random.RandomState(5)
    features = random.normal(size=(640, 12)).astype(np.float32)
    labels = (features[:, 0] * features[:, 1] > 0).astype(np.int32)
    first_w = random.normal(size=(12, 24)).astype(np.float32) * 0.4
    second_w = random.normal(size=(24, 2)).astype(np.float32) * 0.4

    with tf.device(device):
        global_step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [None, 12])
        y = tf.placeholder(tf.int32, [None])
        w1 = tf.get_variable("w1", initializer=tf.constant(first_w))
        b1 = tf.get_variable("b1", [24], initializer=tf.constant_initializer(0.1))
        w2 = tf.get_variable("w2", initializer=tf.constant(second_w))
        logits = tf.matmul(tf.nn.relu(tf.matmul(x, w1) + b1), w2)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        optimizer = tf.train.AdagradOptimizer(0.1)
        hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
        if workers > 1:
            optimizer = tf.train.SyncReplicasOptimizer(
                optimizer, replicas_to_aggregate=workers, total_num_replicas=workers
            )
        train_op = optimizer.minimize(loss, global_step=global_step)
        if workers > 1:
            hooks.append(optimizer.make_session_run_hook(is_chief))

    final = Final({"loss": loss, "w1": w1, "b1": b1, "w2": w2}, {x: features, y: labels})
    part = BATCH // workers
    step = 0
    with tf.train.MonitoredTrainingSession(master=master, is_chief=is_chief, hooks=hooks + [final]) as sess:
        while not sess.should_stop():
            first = step * BATCH % len(labels) + FLAGS.task_index * part
            rows = slice(first, first + part)
            sess.run(train_op, feed_dict={x: features[rows], y: labels[rows]})
            step += 1
    print("worker %d made %d steps" % (FLAGS.task_index, step))
    if FLAGS.values and is_chief:
        np.savez(FLAGS.values, **final.values)


if __name__ == "__main__":
    tf.app.run()
