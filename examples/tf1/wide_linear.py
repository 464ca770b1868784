"""A linear model of many sparse features, in a partitioned variable, with Ftrl and streaming metrics."""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_integer("steps", 80, "Number of steps")
flags.DEFINE_integer("parts", 3, "Into how many parts the weights are cut")
flags.DEFINE_string("values", "", "Where to write the final values, as npz")
FLAGS = flags.FLAGS

FEATURES, EACH = 50, 5


def main(_):
    random = np.random.RandomState(8)
    ids = random.randint(0, FEATURES, (256, EACH)).astype(np.int64)
    truth = random.normal(size=FEATURES)
    labels = (truth[ids].sum(1) > 0).astype(np.float32)

    feature_ids = tf.placeholder(tf.int64, [None, EACH])
    label = tf.placeholder(tf.float32, [None])
    with tf.variable_scope("linear", partitioner=tf.fixed_size_partitioner(FLAGS.parts)):
        first = tf.constant_initializer(0.01)
        weights = tf.get_variable("weights", [FEATURES, 1], initializer=first)
    bias = tf.get_variable("bias", [1], initializer=tf.zeros_initializer())
    chosen = tf.nn.embedding_lookup(weights, feature_ids, partition_strategy="div")
    logits = tf.reshape(tf.reduce_sum(chosen, axis=1), [-1]) + bias
    loss = tf.losses.sigmoid_cross_entropy(label, logits)
    optimizer = tf.train.FtrlOptimizer(
        0.3, l1_regularization_strength=0.002, l2_regularization_strength=0.002, initial_accumulator_value=0.1
    )
    train_op = optimizer.minimize(loss)
    predictions = tf.cast(tf.sigmoid(logits) > 0.5, tf.float32)
    accuracy, update_accuracy = tf.metrics.accuracy(label, predictions)

    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for step in range(FLAGS.steps):
            rows = slice(step * 32 % 256, step * 32 % 256 + 32)
            sess.run(train_op, {feature_ids: ids[rows], label: labels[rows]})
        for first_row in range(0, 256, 64):
            rows = slice(first_row, first_row + 64)
            sess.run(update_accuracy, {feature_ids: ids[rows], label: labels[rows]})
        final_loss = sess.run(loss, {feature_ids: ids, label: labels})
        final_accuracy = sess.run(accuracy)
        print("loss %.6f, accuracy %.4f" % (final_loss, final_accuracy))
        if FLAGS.values:
            whole = sess.run(tf.concat(list(weights), axis=0))
            np.savez(FLAGS.values, loss=final_loss, accuracy=final_accuracy, weights=whole, bias=sess.run(bias))


if __name__ == "__main__":
    tf.app.run()
