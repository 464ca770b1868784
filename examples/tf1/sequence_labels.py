"""Labels for every step of sequences of unequal lengths: a bidirectional LSTM, padded batches, masked loss."""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 150, "Global step to stop at")
FLAGS = flags.FLAGS

SYMBOLS = 6


def sequences(seed):
    """Endless pairs: symbols, and for each whether the one before or after it is the same."""
    random = np.random.RandomState(seed)
    while True:
        symbols = random.randint(1, SYMBOLS, size=random.randint(4, 12)).astype(np.int32)
        same = symbols[1:] == symbols[:-1]
        yield symbols, (np.append(same, False) | np.insert(same, 0, False)).astype(np.int32)


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    data = tf.data.Dataset.from_generator(
        lambda: sequences(FLAGS.task_index), (tf.int32, tf.int32), (tf.TensorShape([None]), tf.TensorShape([None]))
    )
    symbols, labels = data.padded_batch(32, padded_shapes=([12], [12])).make_one_shot_iterator().get_next()
    lengths = tf.reduce_sum(tf.cast(symbols > 0, tf.int32), axis=1)
    mask = tf.sequence_mask(lengths, 12, dtype=tf.float32)
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        table = tf.get_variable("table", [SYMBOLS, 8])
        forward, backward = (tf.contrib.rnn.LSTMCell(16, use_peepholes=True) for _ in range(2))
        outputs, _ = tf.nn.bidirectional_dynamic_rnn(
            forward, backward, tf.nn.embedding_lookup(table, symbols), sequence_length=lengths, dtype=tf.float32
        )
        logits = tf.layers.dense(tf.concat(outputs, 2), 2)
        loss = tf.contrib.seq2seq.sequence_loss(logits, labels, mask)
        right = tf.cast(tf.equal(tf.argmax(logits, 2, output_type=tf.int32), labels), tf.float32)
        accuracy = tf.reduce_sum(right * mask) / tf.reduce_sum(mask)
        optimizer = tf.train.AdamOptimizer(0.02)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
        train_op = optimizer.apply_gradients(zip(clipped, variables), tf.train.get_or_create_global_step())

    share = 0.0
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    with tf.train.MonitoredTrainingSession(server.target, FLAGS.task_index == 0, hooks=hooks) as sess:
        while not sess.should_stop():
            _, share = sess.run([train_op, accuracy])
    print("worker %d, accuracy %.2f" % (FLAGS.task_index, share))


if __name__ == "__main__":
    tf.app.run()
