"""A network of `tf.contrib.layers` with arg scopes, batch norm and `optimize_loss`, fed by hand."""

import numpy as np
import tensorflow as tf
from tensorflow.contrib import layers
from tensorflow.contrib.framework import arg_scope

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 300, "Global step to stop at")
FLAGS = flags.FLAGS


def network(x, training):
    norm = {"is_training": training, "decay": 0.9, "updates_collections": tf.GraphKeys.UPDATE_OPS, "scale": True}
    with arg_scope(
        [layers.fully_connected],
        normalizer_fn=layers.batch_norm,
        normalizer_params=norm,
        weights_regularizer=layers.l2_regularizer(1e-4),
        weights_initializer=layers.xavier_initializer(seed=3),
    ):
        net = layers.stack(x, layers.fully_connected, [32, 16], scope="hidden")
    return layers.linear(layers.dropout(net, 0.9, is_training=training), 2, scope="logits")


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        x = tf.placeholder(tf.float32, [None, 6])
        y = tf.placeholder(tf.int64, [None])
        training = tf.placeholder_with_default(False, [])
        logits = network(x, training)
        tf.losses.sparse_softmax_cross_entropy(y, logits)
        loss = tf.losses.get_total_loss()
        accuracy = tf.contrib.metrics.accuracy(tf.argmax(logits, 1), y)
        global_step = tf.contrib.framework.get_or_create_global_step()
        train_op = layers.optimize_loss(
            loss,
            global_step,
            learning_rate=0.01,
            optimizer="Adam",
            clip_gradients=5.0,
            learning_rate_decay_fn=lambda rate, step: tf.train.exponential_decay(rate, step, 200, 0.9),
        )

    random = np.random.RandomState(FLAGS.task_index)
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    right = 0.0
    with tf.train.MonitoredTrainingSession(server.target, FLAGS.task_index == 0, hooks=hooks) as sess:
        while not sess.should_stop():
            features = random.normal(size=(64, 6))
            feed = {x: features, y: features[:, 0] * features[:, 1] > 0}
            _, right = sess.run([train_op, accuracy], feed_dict={training: True, **feed})
    print("worker %d, accuracy %.2f" % (FLAGS.task_index, right))


if __name__ == "__main__":
    tf.app.run()
