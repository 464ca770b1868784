"""A convolutional network with dropout and moving averages of its variables, like the tutorial "Deep MNIST for Experts"."""

import numpy as np
import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data

flags = tf.app.flags
flags.DEFINE_string("data_dir", "/tmp/mnist_data", "Directory of MNIST's files")
flags.DEFINE_integer("steps", 25, "Number of steps")
flags.DEFINE_float("keep_prob", 0.5, "Share that dropout keeps")
flags.DEFINE_string("values", "", "Where to write the final values, as npz")
FLAGS = flags.FLAGS

random = np.random.RandomState(2)


def weight_variable(shape, name):
    fan_in = float(np.prod(shape[:-1]))
    initial = tf.constant((random.normal(size=shape) * np.sqrt(2.0 / fan_in)).astype(np.float32))
    return tf.Variable(initial, name=name)


def bias_variable(shape, name):
    return tf.Variable(tf.constant(0.1, shape=shape), name=name)


def conv2d(x, W):
    return tf.nn.conv2d(x, W, strides=[1, 1, 1, 1], padding="SAME")


def max_pool_2x2(x):
    return tf.nn.max_pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")


def main(_):
    mnist = input_data.read_data_sets(FLAGS.data_dir, one_hot=False, seed=3)
    x = tf.placeholder(tf.float32, [None, 784])
    y_ = tf.placeholder(tf.int64, [None])
    keep_prob = tf.placeholder(tf.float32)

    with tf.name_scope("conv1"):
        W_conv1 = weight_variable([5, 5, 1, 8], "W")
        h_pool1 = max_pool_2x2(tf.nn.relu(conv2d(tf.reshape(x, [-1, 28, 28, 1]), W_conv1) + bias_variable([8], "b")))
    with tf.name_scope("conv2"):
        W_conv2 = weight_variable([5, 5, 8, 16], "W")
        h_pool2 = tf.nn.avg_pool(
            tf.nn.relu(tf.nn.bias_add(conv2d(h_pool1, W_conv2), bias_variable([16], "b"))),
            [1, 3, 3, 1],
            [1, 2, 2, 1],
            "SAME",
        )
    with tf.name_scope("fc1"):
        W_fc1 = weight_variable([7 * 7 * 16, 32], "W")
        h_fc1 = tf.nn.relu(tf.matmul(tf.reshape(h_pool2, [-1, 7 * 7 * 16]), W_fc1) + bias_variable([32], "b"))
    h_fc1_drop = tf.nn.dropout(h_fc1, keep_prob)
    with tf.name_scope("fc2"):
        W_fc2 = weight_variable([32, 10], "W")
        y_conv = tf.matmul(h_fc1_drop, W_fc2) + bias_variable([10], "b")

    cross_entropy = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y_, logits=y_conv))
    optimizer = tf.train.AdamOptimizer(1e-3)
    grads = optimizer.compute_gradients(cross_entropy)
    capped = [(tf.clip_by_norm(gradient, 2.0), variable) for gradient, variable in grads]
    train_step = optimizer.apply_gradients(capped)
    ema = tf.train.ExponentialMovingAverage(decay=0.9)
    with tf.control_dependencies([train_step]):
        training_op = ema.apply([W_fc2])
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(y_conv, 1), y_), tf.float32))

    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for i in range(FLAGS.steps):
            images, labels = mnist.train.next_batch(32)
            if i % 10 == 0:
                train_accuracy = accuracy.eval(feed_dict={x: images, y_: labels, keep_prob: 1.0})
                print("step %d, training accuracy %g" % (i, train_accuracy))
            training_op.run(feed_dict={x: images, y_: labels, keep_prob: FLAGS.keep_prob})
        test = {x: mnist.test.images[:200], y_: mnist.test.labels[:200], keep_prob: 1.0}
        loss = sess.run(cross_entropy, test)
        print("test accuracy %g" % accuracy.eval(feed_dict=test))
        if FLAGS.values:
            values = sess.run({"conv1": W_conv1, "conv2": W_conv2, "fc2": W_fc2, "average": ema.average(W_fc2)})
            np.savez(FLAGS.values, loss=loss, **values)


if __name__ == "__main__":
    tf.app.run()
