"""Logistic regression on sparse examples: a table of weights in parts on the ps, looked up by the ids of an example."""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 300, "Global step to stop at")
FLAGS = flags.FLAGS

IDS, BATCH = 1000, 64


def examples(random, truth):
    """A sparse batch of one to five ids for each example."""
    counts = random.randint(1, 6, size=BATCH)
    rows = np.repeat(np.arange(BATCH), counts)
    columns = np.concatenate([np.arange(count) for count in counts])
    ids = random.randint(IDS, size=len(rows))
    scores = np.bincount(rows, truth[ids], BATCH)
    return tf.SparseTensorValue(np.stack([rows, columns], 1), ids, [BATCH, 5]), scores > 0


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    ps = len(FLAGS.ps_hosts.split(","))
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        ids = tf.sparse_placeholder(tf.int64)
        labels = tf.placeholder(tf.float32, [BATCH])
        weights = tf.get_variable(
            "weights", [IDS, 1], partitioner=tf.fixed_size_partitioner(2 * ps), initializer=tf.zeros_initializer()
        )
        bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer())
        summed = tf.nn.embedding_lookup_sparse(weights, ids, None, combiner="sum", partition_strategy="div")
        logits = tf.squeeze(summed, 1) + bias
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        correct = tf.reduce_mean(tf.cast(tf.equal(logits > 0, labels > 0.5), tf.float32))
        train_op = tf.train.AdagradOptimizer(1.0).minimize(loss, tf.train.get_or_create_global_step())

    truth = np.random.RandomState(17).normal(size=IDS)
    random = np.random.RandomState(FLAGS.task_index)
    found = []
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    with tf.train.MonitoredTrainingSession(server.target, FLAGS.task_index == 0, hooks=hooks) as sess:
        while not sess.should_stop():
            sparse, positive = examples(random, truth)
            _, share = sess.run([train_op, correct], feed_dict={ids: sparse, labels: positive})
            found.append(share)
    print("worker %d, accuracy %.2f" % (FLAGS.task_index, np.mean(found[-20:])))


if __name__ == "__main__":
    tf.app.run()
