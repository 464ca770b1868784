"""In-graph replication: a tower on each device of one process, and the average of their gradients."""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_integer("num_towers", 2, "How many towers")
flags.DEFINE_string("device", "/cpu:%d", "Name of a tower's device")
flags.DEFINE_integer("steps", 80, "Number of steps")
flags.DEFINE_string("values", "", "Where to write the final values, as npz")
FLAGS = flags.FLAGS


def tower_loss(images, labels, random_values):
    with tf.variable_scope("fc1"):
        w = tf.get_variable("weights", initializer=tf.constant(random_values[0]))
        b = tf.get_variable("biases", [16], initializer=tf.constant_initializer(0.05))
        hidden = tf.nn.relu(tf.matmul(images, w) + b)
    with tf.variable_scope("softmax"):
        w = tf.get_variable("weights", initializer=tf.constant(random_values[1]))
        logits = tf.matmul(hidden, w)
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(cross_entropy, name="cross_entropy")
    tf.add_to_collection("losses", loss)
    return loss


def average_gradients(tower_grads):
    average_grads = []
    for grad_and_vars in zip(*tower_grads):
        grads = [tf.expand_dims(g, 0) for g, _ in grad_and_vars]
        grad = tf.reduce_mean(tf.concat(axis=0, values=grads), 0)
        average_grads.append((grad, grad_and_vars[0][1]))
    return average_grads


def main(_):
    random = np.random.RandomState(11)
    images = random.normal(size=(320, 10)).astype(np.float32)
    labels = np.argmax(images[:, :3], axis=1).astype(np.int32)
    firsts = [
        random.normal(size=(10, 16)).astype(np.float32) * 0.3,
        random.normal(size=(16, 3)).astype(np.float32) * 0.3,
    ]

    with tf.Graph().as_default(), tf.device("/cpu:0"):
        global_step = tf.get_variable("global_step", [], initializer=tf.constant_initializer(0), trainable=False)
        boundaries, rates = [40.0, 60.0], [0.01, 0.005, 0.001]
        opt = tf.train.RMSPropOptimizer(
            tf.train.piecewise_constant(global_step, boundaries, rates), 0.9, momentum=0.5, epsilon=1.0
        )
        x = tf.placeholder(tf.float32, [None, 10])
        y = tf.placeholder(tf.int32, [None])
        x_parts, y_parts = tf.split(x, FLAGS.num_towers), tf.split(y, FLAGS.num_towers)
        tower_grads, losses = [], []
        with tf.variable_scope(tf.get_variable_scope()):
            for i in range(FLAGS.num_towers):
                with tf.device(FLAGS.device % i), tf.name_scope("tower_%d" % i):
                    loss = tower_loss(x_parts[i], y_parts[i], firsts)
                    tf.get_variable_scope().reuse_variables()
                    tower_grads.append(opt.compute_gradients(loss))
                    losses.append(loss)
        train_op = opt.apply_gradients(average_gradients(tower_grads), global_step=global_step)
        total = tf.add_n(losses) / FLAGS.num_towers

        config = tf.ConfigProto(
            allow_soft_placement=True, log_device_placement=False, device_count={"CPU": FLAGS.num_towers}
        )
        with tf.Session(config=config) as sess:
            sess.run(tf.global_variables_initializer())
            for step in range(FLAGS.steps):
                first = step * 80 % 320
                sess.run(train_op, {x: images[first : first + 80], y: labels[first : first + 80]})
            final = sess.run(total, {x: images, y: labels})
            print("loss of %d towers: %.6f" % (FLAGS.num_towers, final))
            if FLAGS.values:
                values = {v.op.name.replace("/", "."): sess.run(v) for v in tf.trainable_variables()}
                np.savez(FLAGS.values, loss=final, **values)


if __name__ == "__main__":
    tf.app.run()
