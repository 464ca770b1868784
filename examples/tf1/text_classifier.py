"""Sentences by words: a vocabulary as a lookup table, an embedding, convolutions over time."""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 200, "Global step to stop at")
FLAGS = flags.FLAGS

GOOD, BAD = ["great", "fine", "lovely", "splendid"], ["awful", "dull", "boring", "poor"]
OTHER = ["the", "film", "was", "actors", "were", "music", "and", "plot", "a", "really"]
VOCABULARY = GOOD + BAD + OTHER


def reviews(seed):
    random = np.random.RandomState(seed)
    sentences, labels = [], []
    for _ in range(400):
        label = random.randint(2)
        words = list(random.choice(OTHER + ["zebra"], size=random.randint(3, 8)))
        words.insert(random.randint(len(words)), random.choice(GOOD if label else BAD))
        sentences.append(" ".join(words))
        labels.append(label)
    return sentences, np.array(labels, np.int32)


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    table = tf.contrib.lookup.index_table_from_tensor(VOCABULARY, num_oov_buckets=1, default_value=-1)

    def indices(sentence, label):
        words = table.lookup(tf.string_split([sentence]).values)
        return tf.pad(words, [[0, 10 - tf.size(words)]], constant_values=len(VOCABULARY) + 1), label

    data = tf.data.Dataset.from_tensor_slices(reviews(FLAGS.task_index)).shuffle(400, seed=1).repeat()
    iterator = data.map(indices).apply(tf.contrib.data.batch_and_drop_remainder(32)).make_initializable_iterator()
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    ids, labels = iterator.get_next()
    ids = tf.reshape(ids, [32, 10])

    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        embedded = tf.nn.embedding_lookup(tf.get_variable("words", [len(VOCABULARY) + 2, 8]), ids)
        features = [
            tf.reduce_max(tf.layers.conv1d(embedded, 8, width, activation=tf.nn.relu), 1) for width in (1, 2, 3)
        ]
        logits = tf.layers.dense(tf.concat(features, 1), 2)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        correct = tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, 1), tf.float32))
        train_op = tf.train.AdamOptimizer(0.01).minimize(loss, tf.train.get_or_create_global_step())

    share = 0.0
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    with tf.train.MonitoredTrainingSession(server.target, FLAGS.task_index == 0, hooks=hooks) as sess:
        while not sess.should_stop():
            _, share = sess.run([train_op, correct])
    print("worker %d, accuracy %.2f" % (FLAGS.task_index, share))


if __name__ == "__main__":
    tf.app.run()
