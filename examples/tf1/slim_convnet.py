"""A convolutional network by tf.contrib.slim, on parameter servers, with slim's own training loop.

Without --worker_hosts it runs by itself.
"""

import numpy as np
import tensorflow as tf
import tensorflow.contrib.slim as slim

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 40, "Number of global steps")
flags.DEFINE_string("train_dir", None, "Directory for checkpoints")
flags.DEFINE_string("values", "", "Where the chief writes the final values, as npz")
FLAGS = flags.FLAGS

SIZE, CLASSES = 8, 3


def make_data():
    random = np.random.RandomState(0)
    labels = random.randint(0, CLASSES, 96)
    images = random.normal(size=(96, SIZE, SIZE, 1)) * 0.5
    for image, label in zip(images, labels):
        image[2 * label : 2 * label + 2, :, 0] += 1.0
    return images.astype(np.float32), labels


def first_value(shape, dtype=None, partition_info=None):
    size = int(np.prod(shape))
    return tf.constant((np.sin(np.arange(size) * 1.7) * 0.3).reshape(shape).astype(np.float32))


def arg_scope():
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        weights_initializer=first_value,
        weights_regularizer=slim.l2_regularizer(0.001),
        normalizer_fn=slim.batch_norm,
        normalizer_params={"decay": 0.9, "is_training": True},
    ) as scope:
        return scope


def model(images):
    with slim.arg_scope(arg_scope()):
        net = slim.conv2d(images, 4, [3, 3], scope="conv1")
        net = slim.max_pool2d(net, [2, 2], scope="pool1")
        net = slim.repeat(net, 2, slim.conv2d, 6, [3, 3], scope="conv2")
        net = slim.flatten(net)
        net = slim.fully_connected(net, 12, scope="fc3")
        return slim.fully_connected(net, CLASSES, activation_fn=None, normalizer_fn=None, scope="logits")


def main(_):
    target, device = "", None
    if FLAGS.worker_hosts:
        cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
        server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
        target = server.target
        if FLAGS.job_name == "ps":
            server.join()
        device = tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster)

    images, labels = make_data()
    with tf.device(device):
        tf.train.get_or_create_global_step()
        logits = model(tf.constant(images))
        slim.losses.softmax_cross_entropy(logits, slim.one_hot_encoding(labels, CLASSES))
        total_loss = slim.losses.get_total_loss()
        train_op = slim.learning.create_train_op(total_loss, tf.train.MomentumOptimizer(0.05, 0.9))

    losses = []  # none, if other workers have made all the steps

    def train_step(session, train_op, global_step, kwargs):
        loss, stop = slim.learning.train_step(session, train_op, global_step, kwargs)
        losses.append(loss)
        return loss, stop

    slim.learning.train(
        train_op,
        FLAGS.train_dir,
        train_step_fn=train_step,
        master=target,
        is_chief=FLAGS.task_index == 0,
        number_of_steps=FLAGS.steps,
        log_every_n_steps=10,
    )
    first, last = (losses[0], losses[-1]) if losses else (np.inf, np.inf)
    print("Worker %d: loss %.4f at first, %.4f at last" % (FLAGS.task_index, first, last))
    if FLAGS.values and FLAGS.task_index == 0:
        np.savez(FLAGS.values, first=first, last=last)


if __name__ == "__main__":
    tf.app.run()
