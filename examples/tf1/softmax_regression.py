"""Softmax regression on handwritten digits, as in the first tutorial of TensorFlow 1."""

import numpy as np
import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data

flags = tf.app.flags
flags.DEFINE_string("data_dir", "/tmp/mnist_data", "Directory of MNIST's files")
flags.DEFINE_integer("steps", 200, "Number of steps")
flags.DEFINE_string("values", "", "Where to write the final values, as npz")
FLAGS = flags.FLAGS


def main(_):
    mnist = input_data.read_data_sets(FLAGS.data_dir, one_hot=True, seed=7)

    x = tf.placeholder(tf.float32, [None, 784])
    W = tf.Variable(tf.zeros([784, 10]), name="W")
    b = tf.Variable(tf.zeros([10]), name="b")
    y = tf.nn.softmax(tf.matmul(x, W) + b)

    y_ = tf.placeholder(tf.float32, [None, 10])
    cross_entropy = tf.reduce_mean(-tf.reduce_sum(y_ * tf.log(y + 1e-10), reduction_indices=[1]))
    train_step = tf.train.GradientDescentOptimizer(0.5).minimize(cross_entropy)
    correct_prediction = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
    accuracy = tf.reduce_mean(tf.cast(correct_prediction, tf.float32))

    sess = tf.InteractiveSession()
    tf.global_variables_initializer().run()
    for _ in range(FLAGS.steps):
        batch_xs, batch_ys = mnist.train.next_batch(100)
        sess.run(train_step, feed_dict={x: batch_xs, y_: batch_ys})

    test = {x: mnist.test.images, y_: mnist.test.labels}
    print("accuracy", accuracy.eval(feed_dict=test))
    if FLAGS.values:
        np.savez(FLAGS.values, loss=cross_entropy.eval(test), W=W.eval(), b=b.eval())


if __name__ == "__main__":
    tf.app.run()
