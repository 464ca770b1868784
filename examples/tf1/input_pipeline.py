"""An input pipeline by tf.data: record files, divided among the workers, and a second dataset for tests."""

import os
import tempfile

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 100, "Global step to stop at")
flags.DEFINE_integer("shuffle_buffer", 100, "Among how many elements to choose the next; 0 keeps their order")
flags.DEFINE_string("values", "", "Where the chief writes the final values, as npz")
FLAGS = flags.FLAGS

SIZE = 6


def images(count, seed):
    """Bright bars, standing or lying, in noise."""
    random = np.random.RandomState(seed)
    found = random.randint(0, 100, (count, SIZE, SIZE)).astype(np.uint8)
    labels = random.randint(0, 2, count)
    for image, label, place in zip(found, labels, random.randint(0, SIZE, count)):
        image[(place,) if label else (slice(None), place)] += 120
    return found, labels


def write_records(path):
    with tf.python_io.TFRecordWriter(path) as writer:
        for image, label in zip(*images(200, 1)):
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def parse(record):
    features = tf.parse_single_example(
        record, {"image": tf.FixedLenFeature([], tf.string), "label": tf.FixedLenFeature([], tf.int64)}
    )
    image = tf.reshape(tf.decode_raw(features["image"], tf.uint8), [SIZE, SIZE, 1])
    return {"image": image}, features["label"]


def prepare(features, label):
    return {"image": tf.cast(features["image"], tf.float32) / 255.0 - 0.5}, label


def training_data(path, workers):
    data = tf.data.TFRecordDataset(path).shard(workers, FLAGS.task_index).map(parse).cache()
    if FLAGS.shuffle_buffer:
        data = data.shuffle(FLAGS.shuffle_buffer)
    return data.repeat().map(prepare).batch(20).prefetch(2)


def test_data():
    found, labels = images(100, 2)
    return tf.data.Dataset.from_tensor_slices(({"image": found[..., np.newaxis]}, labels)).map(prepare).batch(40)


def main(_):
    master, device, is_chief, workers = "", None, FLAGS.task_index == 0, 1
    if FLAGS.worker_hosts:
        cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
        server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
        if FLAGS.job_name == "ps":
            server.join()
        master, workers = server.target, cluster.num_tasks("worker")
        device = tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster)

    path = os.path.join(tempfile.mkdtemp(), "train.tfrecord")
    write_records(path)
    training, test = training_data(path, workers), test_data()
    training_iterator = training.make_one_shot_iterator()
    test_iterator = test.make_initializable_iterator()
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, test_iterator.initializer)
    handle = tf.placeholder(tf.string, [])
    iterator = tf.data.Iterator.from_string_handle(handle, training.output_types, training.output_shapes)
    features, labels = iterator.get_next()

    with tf.device(device):
        global_step = tf.train.get_or_create_global_step()
        random = np.random.RandomState(3)
        w1 = tf.get_variable(
            "w1", initializer=tf.constant(random.normal(size=(SIZE * SIZE, 8)).astype(np.float32) * 0.3)
        )
        b1 = tf.get_variable("b1", [8], initializer=tf.zeros_initializer())
        w2 = tf.get_variable("w2", initializer=tf.constant(random.normal(size=(8, 2)).astype(np.float32) * 0.3))
        flat = tf.reshape(features["image"], [-1, SIZE * SIZE])
        logits = tf.matmul(tf.nn.relu(tf.matmul(flat, w1) + b1), w2)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        correct = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.int32))
        train_op = tf.train.GradientDescentOptimizer(0.2).minimize(loss, global_step=global_step)

    with tf.train.MonitoredTrainingSession(master=master, is_chief=is_chief) as session:
        for_training, for_test = session.run([training_iterator.string_handle(), test_iterator.string_handle()])
        step = 0
        while step < FLAGS.steps:
            _, step, value = session.run([train_op, global_step, loss], {handle: for_training})
        total = right = 0
        try:
            while True:
                seen, known = session.run([labels, correct], {handle: for_test})
                total, right = total + len(seen), right + known
        except tf.errors.OutOfRangeError:
            pass
        print("step %d, loss %.4f, %d of %d right" % (step, value, right, total))
        if FLAGS.values and is_chief:
            found = session.run({"w1": w1, "b1": b1, "w2": w2, "loss": loss}, {handle: for_training})
            np.savez(FLAGS.values, right=right, **found)


if __name__ == "__main__":
    tf.app.run()
