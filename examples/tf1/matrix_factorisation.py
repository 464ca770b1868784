"""Ratings as products of two embeddings, in partitioned tables on the ps; averages of the weights are what is judged."""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 400, "Global step to stop at")
FLAGS = flags.FLAGS

USERS, ITEMS, RANK = 60, 40, 4


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        user, item = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
        rating = tf.placeholder(tf.float32, [None])
        parts = tf.min_max_variable_partitioner(len(FLAGS.ps_hosts.split(",")) + 1, min_slice_size=256)
        with tf.variable_scope(
            "tables", partitioner=parts, initializer=tf.random_normal_initializer(stddev=0.3, seed=5)
        ):
            users = tf.get_variable("users", [USERS, RANK])
            items = tf.get_variable("items", [ITEMS, RANK])
        guess = tf.reduce_sum(tf.nn.embedding_lookup(users, user) * tf.nn.embedding_lookup(items, item), 1)
        error = tf.reduce_mean(tf.squared_difference(guess, rating))
        loss = error + 1e-4 * tf.add_n([tf.nn.l2_loss(part) for part in tf.trainable_variables()])
        step = tf.train.get_or_create_global_step()
        rate = tf.train.piecewise_constant(step, [200, 300], [0.05, 0.02, 0.01])
        train_op = tf.train.AdamOptimizer(rate).minimize(loss, global_step=step)

    truth = np.random.RandomState(3)
    table = truth.normal(size=(USERS, RANK)).dot(truth.normal(size=(RANK, ITEMS)))
    random = np.random.RandomState(FLAGS.task_index)
    errors = []
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    with tf.train.MonitoredTrainingSession(server.target, FLAGS.task_index == 0, hooks=hooks) as sess:
        while not sess.should_stop():
            who, what = random.randint(USERS, size=256), random.randint(ITEMS, size=256)
            _, value = sess.run([train_op, error], {user: who, item: what, rating: table[who, what]})
            errors.append(value)
    print("worker %d, squared error %.2f at first, %.2f at last" % (FLAGS.task_index, errors[0], errors[-1]))


if __name__ == "__main__":
    tf.app.run()
