"""An LSTM that classifies sequences of different lengths, on parameter servers, with MonitoredTrainingSession.

Without --worker_hosts it runs by itself.
"""

import numpy as np
import tensorflow as tf
from tensorflow.contrib import rnn

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 60, "Number of global steps")
flags.DEFINE_string("values", "", "Where the chief writes the final values, as npz")
FLAGS = flags.FLAGS

LENGTH, INPUTS, UNITS, CLASSES = 8, 4, 12, 3


def make_data():
    random = np.random.RandomState(0)
    sequences = random.normal(size=(240, LENGTH, INPUTS)).astype(np.float32)
    lengths = random.randint(3, LENGTH + 1, 240).astype(np.int32)
    labels = np.array([np.argmax(s[:n, :CLASSES].sum(0)) for s, n in zip(sequences, lengths)], np.int64)
    return sequences, lengths, labels


def model(x, lengths):
    def first_value(shape, dtype=None, partition_info=None):
        values = np.random.RandomState(shape[0] + 7).uniform(-0.3, 0.3, size=shape)
        return tf.constant(values.astype(np.float32))

    with tf.variable_scope("classifier", initializer=first_value):
        cells = [rnn.BasicLSTMCell(UNITS), rnn.DropoutWrapper(rnn.GRUCell(UNITS), output_keep_prob=1.0)]
        outputs, state = tf.nn.dynamic_rnn(rnn.MultiRNNCell(cells), x, sequence_length=lengths, dtype=tf.float32)
        last = tf.concat([state[0].h, state[1]], 1)
        return tf.layers.dense(last, CLASSES, name="logits"), outputs


def main(_):
    server, target, cluster, device = None, "", None, None
    if FLAGS.worker_hosts:
        cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
        server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
        target = server.target
        if FLAGS.job_name == "ps":
            server.join()
        device = tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster)

    with tf.device(device):
        global_step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [None, LENGTH, INPUTS])
        n = tf.placeholder(tf.int32, [None])
        y = tf.placeholder(tf.int64, [None])
        logits, _ = model(x, n)
        loss = tf.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
        optimizer = tf.train.AdamOptimizer(0.02)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        train_op = optimizer.apply_gradients(zip(gradients, variables), global_step=global_step)
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))

    sequences, lengths, labels = make_data()
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    whole = {x: sequences, n: lengths, y: labels}
    step, first, final = 3 * FLAGS.task_index, None, {"loss": np.inf}  # each worker begins with other sequences
    with tf.train.MonitoredTrainingSession(master=target, is_chief=FLAGS.task_index == 0, hooks=hooks) as sess:
        while not sess.should_stop():
            rows = slice(step * 40 % 240, step * 40 % 240 + 40)
            feed = {x: sequences[rows], n: lengths[rows], y: labels[rows]}
            _, value = sess.run([train_op, loss], feed_dict=feed)
            first = value if first is None else first
            step += 1
            if step % 10 == 0 and not sess.should_stop():
                final = sess.run({"loss": loss, "accuracy": accuracy}, whole)
    print("Worker %d: loss %.4f at first, %.4f at last" % (FLAGS.task_index, first or np.inf, final["loss"]))
    if FLAGS.values and FLAGS.task_index == 0:
        np.savez(FLAGS.values, first=first, **final)


if __name__ == "__main__":
    tf.app.run()
