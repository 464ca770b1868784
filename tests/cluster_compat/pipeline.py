"""A script of TensorFlow 1 that trains from files by queues: of records, of lines, of fixed length, or of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_string("kind", "records", "One of 'records', 'lines', 'fixed', 'images'")
flags.DEFINE_string("session", "monitored", "One of 'monitored', 'supervisor', 'plain'")
flags.DEFINE_integer("epochs", 0, "How often to read the data; 0: until the steps are done")
flags.DEFINE_integer("steps", 150, "Global step to stop at")
flags.DEFINE_string("data_dir", "", "Where the data is written and read")
FLAGS = flags.FLAGS

SIZE = 4


def write(directory: Path) -> list[str]:
    """Writes 200 pictures of 4 by 4 whose brighter half is their label."""
    random = np.random.RandomState(FLAGS.task_index)
    labels = random.randint(0, 2, 200)
    pictures = random.randint(0, 100, (200, SIZE, SIZE, 1)).astype(np.uint8)
    for picture, label in zip(pictures, labels, strict=True):
        picture[:, :2] += np.uint8(120 * label)
        picture[:, 2:] += np.uint8(120 * (1 - label))
    for part in range(2):
        rows = slice(part * 100, part * 100 + 100)
        path = directory / f"part-{part}"
        if FLAGS.kind == "records":
            with tf.python_io.TFRecordWriter(str(path)) as writer:
                for picture, label in zip(pictures[rows], labels[rows], strict=True):
                    image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[picture.tobytes()]))
                    number = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)]))
                    features = tf.train.Features(feature={"image": image, "label": number})
                    writer.write(tf.train.Example(features=features).SerializeToString())
        elif FLAGS.kind == "fixed":
            with path.open("wb") as file:
                for picture, label in zip(pictures[rows], labels[rows], strict=True):
                    file.write(bytes([label]) + picture.tobytes())
        elif FLAGS.kind == "lines":
            with path.open("w") as file:
                for picture, label in zip(pictures[rows], labels[rows], strict=True):
                    file.write(",".join(map(str, [label, *picture.ravel()])) + "\n")
        else:
            with tf.Graph().as_default(), tf.Session() as session:
                given = tf.placeholder(tf.uint8, [SIZE, SIZE, 1])
                encoded = tf.image.encode_png(given)
                for number, (picture, label) in enumerate(zip(pictures[rows], labels[rows], strict=True)):
                    image = session.run(encoded, {given: picture})
                    Path(f"{path}-{number}-{label}.png").write_bytes(image)
    return [str(path) for path in sorted(directory.iterdir())]


def read(paths: list[str]) -> tuple[Any, Any]:
    """Returns (picture, label) of one example."""
    epochs = FLAGS.epochs or None
    if FLAGS.kind == "images":
        labels = [int(path[-5]) for path in paths]
        name, label = tf.train.slice_input_producer([paths, labels], num_epochs=epochs)
        picture = tf.image.decode_png(tf.read_file(name), channels=1)
    else:
        queue = tf.train.string_input_producer(paths, num_epochs=epochs)
        if FLAGS.kind == "records":
            _, record = tf.TFRecordReader().read(queue)
            shape = {"image": tf.FixedLenFeature([], tf.string), "label": tf.FixedLenFeature([], tf.int64)}
            found = tf.parse_single_example(record, shape)
            picture, label = tf.decode_raw(found["image"], tf.uint8), found["label"]
        elif FLAGS.kind == "fixed":
            _, record = tf.FixedLengthRecordReader(1 + SIZE * SIZE).read(queue)
            whole = tf.decode_raw(record, tf.uint8)
            label, picture = tf.cast(whole[0], tf.int32), tf.strided_slice(whole, [1], [1 + SIZE * SIZE])
        else:
            _, line = tf.TextLineReader().read(queue)
            columns = tf.decode_csv(line, [[0]] * (1 + SIZE * SIZE))
            label, picture = columns[0], tf.stack(columns[1:])
    picture = tf.reshape(picture, [SIZE, SIZE, 1])
    picture = tf.cast(picture, tf.float32) + tf.random_uniform([SIZE, SIZE, 1], 0.0, 5.0)
    return picture / 255.0 - 0.5, tf.cast(label, tf.int32)


def main(_: Any) -> None:
    master, device, is_chief = "", None, FLAGS.task_index == 0
    if FLAGS.worker_hosts:
        cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
        server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
        if FLAGS.job_name == "ps":
            server.join()
        master = server.target
        device = tf.train.replica_device_setter(worker_device=f"/job:worker/task:{FLAGS.task_index}", cluster=cluster)
    directory = Path(FLAGS.data_dir) / f"data-{FLAGS.task_index}"
    directory.mkdir(parents=True)
    paths = write(directory)

    with tf.device(device):
        global_step = tf.train.get_or_create_global_step()
        pictures, labels = tf.train.shuffle_batch(
            read(paths), batch_size=20, capacity=200, min_after_dequeue=60, num_threads=2
        )
        assert pictures.shape.as_list() == [20, SIZE, SIZE, 1]
        weights = tf.get_variable("weights", [SIZE * SIZE, 2], initializer=tf.zeros_initializer())
        logits = tf.matmul(tf.reshape(pictures, [-1, SIZE * SIZE]), weights)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.cast(tf.argmax(logits, 1), tf.int32), labels), tf.float32))
        tf.summary.scalar("loss", loss)
        train_op = tf.train.GradientDescentOptimizer(0.5).minimize(loss, global_step=global_step)
        init_op = tf.group(tf.global_variables_initializer(), tf.local_variables_initializer())

    count, last, step = 0, 0.0, 0
    if FLAGS.session == "monitored":
        hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
        with tf.train.MonitoredTrainingSession(master, is_chief, hooks=hooks) as session:
            while not session.should_stop():
                _, last, step = session.run([train_op, accuracy, global_step])
                count += 1
    elif FLAGS.session == "supervisor":
        sv = tf.train.Supervisor(is_chief=is_chief, global_step=global_step)
        with sv.managed_session(master) as session:
            while not sv.should_stop() and step < FLAGS.steps:
                _, last, step = session.run([train_op, accuracy, global_step])
                count += 1
    else:
        with tf.Session() as session:
            session.run(init_op)
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess=session, coord=coord)
            try:
                while not coord.should_stop() and step < FLAGS.steps:
                    _, last, step = session.run([train_op, accuracy, global_step])
                    count += 1
            except tf.errors.OutOfRangeError:
                print("the end of the data")
            finally:
                coord.request_stop()
            coord.join(threads)
    print(f"{count} steps here, global step {step}, accuracy {last:.2f}")


if __name__ == "__main__":
    tf.app.run()
