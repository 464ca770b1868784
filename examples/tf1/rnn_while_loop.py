"""A recurrent network over sequences of different lengths, by `while_loop`, with clipped gradients."""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_integer("steps", 60, "Number of steps")
flags.DEFINE_string("values", "", "Where to write the final values, as npz")
FLAGS = flags.FLAGS

LENGTH, INPUTS, UNITS = 9, 3, 10


def main(_):
    random = np.random.RandomState(6)
    sequences = random.normal(size=(120, LENGTH, INPUTS)).astype(np.float32)
    lengths = random.randint(3, LENGTH + 1, 120).astype(np.int32)
    targets = np.array([s[:n, 0].sum() for s, n in zip(sequences, lengths)], np.float32)[:, None]

    x = tf.placeholder(tf.float32, [None, LENGTH, INPUTS], name="x")
    n = tf.placeholder(tf.int32, [None], name="lengths")
    y = tf.placeholder(tf.float32, [None, 1], name="y")
    with tf.variable_scope("rnn"):
        w = tf.get_variable(
            "w", initializer=tf.constant(random.normal(size=(INPUTS + UNITS, UNITS)).astype(np.float32) * 0.3)
        )
        b = tf.get_variable("b", [UNITS], initializer=tf.zeros_initializer())
    with tf.variable_scope("out"):
        v = tf.get_variable("v", initializer=tf.constant(random.normal(size=(UNITS, 1)).astype(np.float32) * 0.3))

    by_time = tf.transpose(x, [1, 0, 2])
    longest = tf.reduce_max(n)

    def condition(t, state):
        return t < longest

    def body(t, state):
        both = tf.concat([tf.gather(by_time, t), state], 1)
        new_state = tf.tanh(tf.matmul(both, w) + b)
        alive = tf.expand_dims(tf.cast(t < n, tf.float32), 1)
        return t + 1, alive * new_state + (1.0 - alive) * state

    zero_state = tf.zeros([tf.shape(x)[0], UNITS])
    _, last = tf.while_loop(condition, body, [tf.constant(0), zero_state])
    loss = tf.reduce_mean(tf.squared_difference(tf.matmul(last, v), y))

    variables = tf.trainable_variables()
    gradients, norm = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    global_step = tf.train.create_global_step()
    train_op = tf.train.AdamOptimizer(0.02).apply_gradients(zip(gradients, variables), global_step=global_step)

    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(FLAGS.steps):
            rows = slice(step * 40 % 120, step * 40 % 120 + 40)
            feed = {x: sequences[rows], n: lengths[rows], y: targets[rows]}
            _, loss_value, norm_value = sess.run([train_op, loss, norm], feed_dict=feed)
        final = sess.run(loss, {x: sequences, n: lengths, y: targets})
        print("loss %.6f, last norm %.6f" % (final, norm_value))
        if FLAGS.values:
            names = {variable.op.name.replace("/", "."): variable for variable in variables}
            np.savez(FLAGS.values, loss=final, norm=norm_value, **sess.run(names))


if __name__ == "__main__":
    tf.app.run()
