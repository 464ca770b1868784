"""Examples from TFRecord files through `tf.data`: each worker reads its own files."""

import os
import tempfile

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_string("data_dir", "", "Where the examples are; they are written there if it is empty")
flags.DEFINE_integer("steps", 200, "Global step to stop at")
FLAGS = flags.FLAGS

FILES = 4


def write_examples(path, seed):
    random = np.random.RandomState(seed)
    with tf.python_io.TFRecordWriter(path) as writer:
        for _ in range(200):
            values = random.normal(size=5).astype(np.float32)
            feature = {
                "values": tf.train.Feature(float_list=tf.train.FloatList(value=values)),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(values.sum() > 0)])),
                "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"example"])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def parse(record):
    spec = {"values": tf.FixedLenFeature([5], tf.float32), "label": tf.FixedLenFeature([], tf.int64)}
    found = tf.parse_single_example(record, spec)
    return found["values"], found["label"]


class Initialise(tf.train.SessionRunHook):
    def __init__(self, initializer):
        self.initializer = initializer

    def after_create_session(self, session, coord):
        session.run(self.initializer)


def main(_):
    worker_hosts = FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": worker_hosts})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    folder = FLAGS.data_dir or tempfile.mkdtemp()
    mine = [os.path.join(folder, "%d.tfrecords" % n) for n in range(FLAGS.task_index, FILES, len(worker_hosts))]
    for path in mine:
        if not tf.gfile.Exists(path):
            write_examples(path, seed=int(os.path.basename(path)[0]))

    data = tf.data.TFRecordDataset(mine).map(parse, num_parallel_calls=2)
    data = data.shuffle(400, seed=FLAGS.task_index).repeat().batch(32).prefetch(2)
    iterator = data.make_initializable_iterator()
    values, labels = iterator.get_next()
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        logits = tf.squeeze(tf.layers.dense(values, 1), 1)
        loss = tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(labels, tf.float32), logits=logits)
        )
        correct = tf.reduce_mean(tf.cast(tf.equal(logits > 0, labels > 0), tf.float32))
        train_op = tf.train.FtrlOptimizer(0.5).minimize(loss, tf.train.get_or_create_global_step())

    hooks = [Initialise(iterator.initializer), tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    right = 0.0
    with tf.train.MonitoredTrainingSession(server.target, FLAGS.task_index == 0, hooks=hooks) as sess:
        while not sess.should_stop():
            _, right = sess.run([train_op, correct])
    print("worker %d, accuracy %.2f" % (FLAGS.task_index, right))


if __name__ == "__main__":
    tf.app.run()
