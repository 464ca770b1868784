"""A small residual network of slim layers, trained on averages of its weights: moving averages, decay, weight decay."""

import numpy as np
import tensorflow as tf

slim = tf.contrib.slim
flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 120, "Global step to stop at")
FLAGS = flags.FLAGS


def images(random):
    """Stripes along rows or along columns, in noise."""
    labels = random.randint(2, size=32)
    found = random.normal(scale=0.5, size=(32, 8, 8, 1))
    stripes = np.tile([1.0, -1.0], 4)
    for image, label in zip(found, labels):
        image[:, :, 0] += stripes[None, :] if label else stripes[:, None]
    return found, labels


def block(net, depth, stride, scope):
    with tf.variable_scope(scope):
        kept = net if stride == 1 and net.shape[3] == depth else slim.conv2d(net, depth, 1, stride, activation_fn=None)
        net = slim.conv2d(net, depth, 3, stride)
        return tf.nn.relu(kept + slim.conv2d(net, depth, 3, activation_fn=None))


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        x, y = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int64, [None])
        step = slim.get_or_create_global_step()
        norm = {"is_training": True, "decay": 0.9}
        with (
            slim.arg_scope([slim.conv2d], normalizer_fn=slim.batch_norm, normalizer_params=norm),
            slim.arg_scope([slim.conv2d, slim.fully_connected], weights_regularizer=slim.l2_regularizer(1e-4)),
        ):
            net = slim.conv2d(x, 8, 3, scope="stem")
            net = block(net, 8, 1, "block1")
            net = block(net, 16, 2, "block2")
            logits = slim.fully_connected(tf.reduce_mean(net, [1, 2]), 2, activation_fn=None)
        slim.losses.softmax_cross_entropy(logits, slim.one_hot_encoding(y, 2))
        loss = slim.losses.get_total_loss()
        rate = tf.train.polynomial_decay(0.1, step, FLAGS.steps, 0.01)
        train = tf.train.MomentumOptimizer(rate, 0.9, use_nesterov=True).minimize(loss, global_step=step)
        average = tf.train.ExponentialMovingAverage(0.9, step)
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies([train] + updates):
            train_op = average.apply(tf.trainable_variables())
        correct = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))

    share, random = 0.0, np.random.RandomState(FLAGS.task_index)
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps), tf.train.NanTensorHook(loss)]
    with tf.train.MonitoredTrainingSession(server.target, FLAGS.task_index == 0, hooks=hooks) as sess:
        while not sess.should_stop():
            features, labels = images(random)
            _, share = sess.run([train_op, correct], {x: features, y: labels})
    print("worker %d, accuracy %.2f" % (FLAGS.task_index, share))


if __name__ == "__main__":
    tf.app.run()
