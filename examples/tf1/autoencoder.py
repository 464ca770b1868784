"""An autoencoder whose learning rate is fed, with control flow in the graph and a variable assigned by hand."""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_integer("steps", 100, "Number of steps")
flags.DEFINE_string("values", "", "Where to write the final values, as npz")
FLAGS = flags.FLAGS


def main(_):
    tf.set_random_seed(1)
    random = np.random.RandomState(10)
    codes = random.normal(size=(200, 3))
    data = np.tanh(codes.dot(random.normal(size=(3, 9)))).astype(np.float32)

    x = tf.placeholder(tf.float32, [None, 9], name="x")
    rate = tf.placeholder_with_default(tf.constant(0.05), [], name="rate")
    with tf.variable_scope("encoder"):
        w = tf.get_variable("w", initializer=(random.normal(size=(9, 3)) * 0.3).astype(np.float32))
        code = tf.nn.softplus(tf.matmul(x, w)) - tf.log(2.0)
    with tf.variable_scope("decoder"):
        b = tf.get_variable("b", [9], initializer=tf.zeros_initializer)
        output = tf.matmul(code, w, transpose_b=True) + b
    error = tf.abs(output - x)
    huber = tf.where(error < 1.0, 0.5 * tf.square(error), error - 0.5)
    loss = tf.reduce_mean(tf.reduce_sum(huber, axis=1))

    best = tf.Variable(1e6, trainable=False, name="best")
    calls = tf.Variable(0, trainable=False, name="calls")
    optimizer = tf.train.GradientDescentOptimizer(rate)
    gradients = [(tf.clip_by_value(g, -0.5, 0.5), v) for g, v in optimizer.compute_gradients(loss, [w, b])]
    with tf.control_dependencies([tf.assign_add(calls, 1)]):
        train_op = optimizer.apply_gradients(gradients)
    note_best = tf.cond(loss < best, lambda: tf.assign(best, loss), lambda: tf.identity(best))

    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(FLAGS.steps):
            rows = slice(step * 50 % 200, step * 50 % 200 + 50)
            sess.run(train_op, {x: data[rows], rate: 0.2 if step < 50 else 0.1})
            sess.run(note_best, {x: data})
        final, best_value, count = sess.run([loss, best, calls], {x: data})
        print("loss %.6f, the best %.6f, %d calls" % (final, best_value, count))
        if FLAGS.values:
            np.savez(FLAGS.values, loss=final, best=best_value, calls=count, w=sess.run(w), b=sess.run(b))


if __name__ == "__main__":
    tf.app.run()
