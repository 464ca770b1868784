"""Several graphs in threads: while one trains with the job, others prepare examples and judge what comes out."""

import contextlib
import queue
import threading

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 200, "Global step to stop at")
FLAGS = flags.FLAGS


def prepare(batches, stop, seed):
    """Augments examples in a graph and a session of this thread's own."""
    random = np.random.RandomState(seed)
    with tf.Graph().as_default():
        raw = tf.placeholder(tf.float32, [32, 4])
        scaled = raw / tf.sqrt(tf.reduce_sum(tf.square(raw), axis=1, keep_dims=True))
        with tf.Session() as sess:
            while not stop.is_set():
                features = sess.run(scaled, {raw: random.normal(size=(32, 4))})
                with contextlib.suppress(queue.Full):
                    batches.put((features, features[:, 0] > features[:, 1]), timeout=0.1)


def judge(values, verdict):
    """Evaluates the weights, as they were trained, in another graph of the same names."""
    random = np.random.RandomState(99)
    features = random.normal(size=(500, 4)).astype(np.float32)
    graph = tf.Graph()
    with graph.as_default(), tf.variable_scope("model"):
        w = tf.get_variable("w", initializer=tf.constant(values["w"]))
        b = tf.get_variable("b", initializer=tf.constant(values["b"]))
        guess = tf.squeeze(tf.matmul(tf.constant(features), w), 1) + b > 0
        correct = tf.reduce_mean(tf.cast(tf.equal(guess, features[:, 0] > features[:, 1]), tf.float32))
        init = tf.global_variables_initializer()
    with tf.Session(graph=graph) as sess:
        sess.run(init)
        verdict.append(sess.run(correct))


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    batches, stop = queue.Queue(4), threading.Event()
    threads = [
        threading.Thread(target=prepare, args=(batches, stop, 10 * FLAGS.task_index + number)) for number in range(2)
    ]
    for thread in threads:
        thread.start()

    with tf.device(tf.train.replica_device_setter(cluster=cluster)), tf.variable_scope("model"):
        x = tf.placeholder(tf.float32, [None, 4])
        y = tf.placeholder(tf.float32, [None])
        w = tf.get_variable("w", [4, 1], initializer=tf.zeros_initializer())
        b = tf.get_variable("b", [], initializer=tf.zeros_initializer())
        logits = tf.squeeze(tf.matmul(x, w), 1) + b
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits))
        train_op = tf.train.MomentumOptimizer(0.5, 0.9).minimize(loss, tf.train.get_or_create_global_step())

    values = {}
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    with tf.train.MonitoredTrainingSession(server.target, FLAGS.task_index == 0, hooks=hooks) as sess:
        while not sess.should_stop():
            features, labels = batches.get()
            _, values["w"], values["b"] = sess.run([train_op, w, b], feed_dict={x: features, y: labels})
    stop.set()
    for thread in threads:
        thread.join()

    verdict = []
    judging = threading.Thread(target=judge, args=(values, verdict))
    judging.start()
    judging.join()
    print("worker %d, accuracy %.2f" % (FLAGS.task_index, verdict[0]))


if __name__ == "__main__":
    tf.app.run()
