"""Synchronous training as scripts of TensorFlow 0.12 wrote it: `replica_id`, a chief's queue runner, a Supervisor."""

import tempfile
import time

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 150, "Global step to stop at")
FLAGS = flags.FLAGS


def main(_):
    ps_hosts, worker_hosts = FLAGS.ps_hosts.split(","), FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": ps_hosts, "worker": worker_hosts})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    is_chief = FLAGS.task_index == 0

    with tf.device(
        tf.train.replica_device_setter(
            worker_device="/job:worker/task:%d" % FLAGS.task_index, ps_device="/job:ps/cpu:0", cluster=cluster
        )
    ):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        x = tf.placeholder(tf.float32, [None, 10])
        y_ = tf.placeholder(tf.float32, [None, 3])
        w = tf.Variable(tf.truncated_normal([10, 3], stddev=0.1), name="weights")
        b = tf.Variable(tf.zeros([3]), name="biases")
        y = tf.nn.softmax(tf.nn.xw_plus_b(x, w, b))
        loss = -tf.reduce_sum(y_ * tf.log(tf.clip_by_value(y, 1e-10, 1.0)))
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.AdamOptimizer(0.02),
            replicas_to_aggregate=len(worker_hosts),
            total_num_replicas=len(worker_hosts),
            replica_id=FLAGS.task_index,
            name="sync_replicas",
        )
        train_step = optimizer.minimize(loss, global_step=global_step)
        if is_chief:
            chief_queue_runner = optimizer.get_chief_queue_runner()
            init_tokens_op = optimizer.get_init_tokens_op()
        init_op = tf.initialize_all_variables()

    sv = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=tempfile.mkdtemp(),
        init_op=init_op,
        recovery_wait_secs=1,
        global_step=global_step,
    )
    config = tf.ConfigProto(
        allow_soft_placement=True, device_filters=["/job:ps", "/job:worker/task:%d" % FLAGS.task_index]
    )
    sess = sv.prepare_or_wait_for_session(server.target, config=config)
    if is_chief:
        sv.start_queue_runners(sess, [chief_queue_runner])
        sess.run(init_tokens_op)

    random = np.random.RandomState(FLAGS.task_index)
    truth = np.random.RandomState(9).normal(size=(10, 3))
    began, local_step, step, value = time.time(), 0, 0, 0.0
    while step < FLAGS.steps and not sv.should_stop():
        features = random.normal(size=(50, 10))
        labels = np.eye(3)[np.argmax(features.dot(truth), 1)]
        _, step, value = sess.run([train_step, global_step, loss], feed_dict={x: features, y_: labels})
        local_step += 1
    print(
        "worker %d: %d local steps in %.0f s, loss %.3f"
        % (FLAGS.task_index, local_step, time.time() - began, value / 50)
    )
    sv.stop()


if __name__ == "__main__":
    tf.app.run()
