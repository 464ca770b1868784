"""`tf.layers` with batch normalisation, losses and regularisation, summaries for TensorBoard, and a saver."""

import os
import tempfile

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_integer("steps", 40, "Number of steps")
flags.DEFINE_string("train_dir", "", "Directory for checkpoints and summaries; a temporary one when left out")
flags.DEFINE_string("values", "", "Where to write the final values, as npz")
FLAGS = flags.FLAGS

random = np.random.RandomState(9)


def given(*shape):
    return tf.constant_initializer((random.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32))


def model(images, training):
    net = tf.layers.conv2d(
        images, 6, 3, padding="same", use_bias=False, kernel_initializer=given(3, 3, 2, 6), name="conv"
    )
    net = tf.layers.batch_normalization(net, training=training, momentum=0.9, name="bn", fused=False)
    net = tf.nn.relu(net)
    net = tf.layers.max_pooling2d(net, 2, 2)
    net = tf.layers.flatten(net)
    net = tf.layers.dense(
        net,
        12,
        activation=tf.nn.elu,
        kernel_initializer=given(4 * 4 * 6, 12),
        name="fc",
        kernel_regularizer=lambda w: 0.001 * tf.nn.l2_loss(w),
    )
    net = tf.layers.dropout(net, rate=0.0, training=training)
    return tf.layers.dense(net, 3, kernel_initializer=given(12, 3), name="logits")


def main(_):
    images = random.normal(size=(128, 8, 8, 2)).astype(np.float32)
    labels = (images.mean(axis=(1, 2, 3)) * 40).astype(np.int64) % 3
    train_dir = FLAGS.train_dir or tempfile.mkdtemp()

    x = tf.placeholder(tf.float32, [None, 8, 8, 2])
    y = tf.placeholder(tf.int64, [None])
    training = tf.placeholder(tf.bool, [])
    logits = model(x, training)
    tf.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
    total_loss = tf.losses.get_total_loss()
    tf.summary.scalar("total_loss", total_loss)
    tf.summary.histogram("logits", logits)
    global_step = tf.train.get_or_create_global_step()
    update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(update_ops):
        train_op = tf.train.AdadeltaOptimizer(1.0, rho=0.9).minimize(total_loss, global_step=global_step)
    merged = tf.summary.merge_all()
    saver = tf.train.Saver(max_to_keep=2)

    with tf.Session() as sess:
        writer = tf.summary.FileWriter(train_dir, sess.graph)
        sess.run(tf.global_variables_initializer())
        for step in range(FLAGS.steps):
            rows = slice(step * 32 % 128, step * 32 % 128 + 32)
            feed = {x: images[rows], y: labels[rows], training: True}
            _, summary = sess.run([train_op, merged], feed_dict=feed)
            writer.add_summary(summary, step)
            if step % 10 == 9:
                saver.save(sess, os.path.join(train_dir, "model.ckpt"), global_step=global_step)
        writer.close()

    with tf.Session() as sess:
        saver.restore(sess, tf.train.latest_checkpoint(train_dir))
        loss, step = sess.run([total_loss, global_step], {x: images, y: labels, training: False})
        print("restored at step %d, loss %.6f" % (step, loss))
        if FLAGS.values:
            names = {variable.op.name.replace("/", "."): variable for variable in tf.trainable_variables()}
            names.update({"moving.%d" % i: v for i, v in enumerate(tf.global_variables()) if "moving" in v.op.name})
            np.savez(FLAGS.values, loss=loss, **sess.run(names))


if __name__ == "__main__":
    tf.app.run()
