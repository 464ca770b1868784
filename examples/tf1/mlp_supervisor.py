"""A network with one hidden layer on parameter servers, between-graph replication, with a Supervisor.

Without --worker_hosts it runs by itself.
"""

import math

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("hidden_units", 32, "Number of units in the hidden layer")
flags.DEFINE_integer("batch_size", 50, "Training batch size")
flags.DEFINE_integer("steps", 100, "Number of global steps")
flags.DEFINE_float("learning_rate", 0.01, "Learning rate")
flags.DEFINE_string("train_dir", None, "Directory for checkpoints")
flags.DEFINE_string("values", "", "Where the chief writes the final values, as npz")
FLAGS = flags.FLAGS

INPUTS, CLASSES = 20, 4


def make_data():
    random = np.random.RandomState(0)
    images = random.normal(size=(400, INPUTS)).astype(np.float32)
    labels = np.argmax(images.dot(random.normal(size=(INPUTS, CLASSES))), axis=1).astype(np.int64)
    return images, labels


def initial(seed, *shape):
    values = np.random.RandomState(seed).normal(size=shape) / math.sqrt(shape[0])
    return tf.constant(values.astype(np.float32))


def main(_):
    server, target, cluster = None, "", None
    if FLAGS.worker_hosts:
        ps_hosts = FLAGS.ps_hosts.split(",")
        worker_hosts = FLAGS.worker_hosts.split(",")
        cluster = tf.train.ClusterSpec({"ps": ps_hosts, "worker": worker_hosts})
        server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
        target = server.target
        if FLAGS.job_name == "ps":
            server.join()

    is_chief = FLAGS.task_index == 0
    device = None
    if cluster is not None:
        device = tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster)
    with tf.device(device):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        x = tf.placeholder(tf.float32, [None, INPUTS])
        y_ = tf.placeholder(tf.int64, [None])

        hid_w = tf.Variable(initial(1, INPUTS, FLAGS.hidden_units), name="hid_w")
        hid_b = tf.Variable(tf.zeros([FLAGS.hidden_units]), name="hid_b")
        sm_w = tf.Variable(initial(2, FLAGS.hidden_units, CLASSES), name="sm_w")
        sm_b = tf.Variable(tf.zeros([CLASSES]), name="sm_b")

        hid = tf.nn.relu(tf.nn.xw_plus_b(x, hid_w, hid_b))
        logits = tf.nn.xw_plus_b(hid, sm_w, sm_b)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y_, logits=logits))
        train_op = tf.train.AdamOptimizer(FLAGS.learning_rate).minimize(loss, global_step=global_step)
        init_op = tf.global_variables_initializer()

    sv = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=FLAGS.train_dir,
        init_op=init_op,
        recovery_wait_secs=1,
        summary_op=None,
        global_step=global_step,
    )
    sess_config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
    sess = sv.prepare_or_wait_for_session(target, config=sess_config)

    images, labels = make_data()
    step, local_step = int(sess.run(global_step)), 0
    print("Worker %d: begins at global step %d" % (FLAGS.task_index, step))
    while not sv.should_stop() and step < FLAGS.steps:
        first = (local_step * FLAGS.batch_size) % len(labels)
        rows = slice(first, first + FLAGS.batch_size)
        _, step = sess.run([train_op, global_step], feed_dict={x: images[rows], y_: labels[rows]})
        step = int(step) if cluster is not None else int(sess.run(global_step))
        local_step += 1
    final_loss = sess.run(loss, feed_dict={x: images, y_: labels})
    print("Worker %d: %d local steps, global step %d, loss %.6f" % (FLAGS.task_index, local_step, step, final_loss))
    if FLAGS.values and is_chief:
        values = sess.run({"hid_w": hid_w, "hid_b": hid_b, "sm_w": sm_w, "sm_b": sm_b})
        np.savez(FLAGS.values, loss=final_loss, global_step=step, **values)
    sv.stop()


if __name__ == "__main__":
    tf.app.run()
