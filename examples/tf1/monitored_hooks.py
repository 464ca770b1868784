"""A MonitoredTrainingSession with TensorFlow's hooks and a custom one, and a learning rate that decays."""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 120, "Global step to stop at")
flags.DEFINE_string("checkpoint_dir", None, "Directory for checkpoints and summaries")
flags.DEFINE_string("values", "", "Where the chief writes the final values, as npz")
FLAGS = flags.FLAGS


class LossHistory(tf.train.SessionRunHook):
    """Remembers the loss of every run."""

    def __init__(self, loss):
        self.loss = loss
        self.history = []

    def begin(self):
        self.began = True

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.loss)

    def after_run(self, run_context, run_values):
        self.history.append(float(run_values.results))

    def end(self, session):
        print("%d runs, the first loss %.4f, the last %.4f" % (len(self.history), self.history[0], self.history[-1]))


class Final(tf.train.SessionRunHook):
    """Takes the final values before the session is closed."""

    def __init__(self, fetches):
        self.fetches = fetches
        self.values = None

    def end(self, session):
        self.values = session.run(self.fetches)


def main(_):
    master, device, is_chief = "", None, FLAGS.task_index == 0
    if FLAGS.worker_hosts:
        cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
        server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
        if FLAGS.job_name == "ps":
            server.join()
        master = server.target
        device = tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster)

    random = np.random.RandomState(3)
    features = random.normal(size=(300, 8)).astype(np.float32)
    targets = (np.sin(features[:, :1]) + features[:, 1:2] * 0.5).astype(np.float32)

    with tf.device(device):
        global_step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [None, 8], name="x")
        y = tf.placeholder(tf.float32, [None, 1], name="y")
        w1 = tf.get_variable("w1", initializer=tf.constant(random.normal(size=(8, 16)).astype(np.float32) * 0.3))
        b1 = tf.get_variable("b1", [16], initializer=tf.zeros_initializer())
        w2 = tf.get_variable("w2", initializer=tf.constant(random.normal(size=(16, 1)).astype(np.float32) * 0.3))
        prediction = tf.matmul(tf.tanh(tf.matmul(x, w1) + b1), w2)
        loss = tf.reduce_mean(tf.square(prediction - y)) + 1e-4 * (tf.nn.l2_loss(w1) + tf.nn.l2_loss(w2))
        tf.summary.scalar("loss", loss)
        rate = tf.train.exponential_decay(0.02, global_step, 25, 0.8, staircase=True)
        optimizer = tf.train.MomentumOptimizer(rate, momentum=0.9, use_nesterov=True)
        train_op = optimizer.minimize(loss, global_step=global_step)

    history = LossHistory(loss)
    final = Final({"w1": w1, "b1": b1, "w2": w2, "global_step": global_step})
    hooks = [
        tf.train.StopAtStepHook(last_step=FLAGS.steps),
        tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=50),
        tf.train.NanTensorHook(loss),
        history,
        final,
    ]
    with tf.train.MonitoredTrainingSession(
        master=master,
        is_chief=is_chief,
        checkpoint_dir=FLAGS.checkpoint_dir,
        save_checkpoint_secs=60,
        hooks=hooks,
    ) as mon_sess:
        step = 0
        while not mon_sess.should_stop():
            rows = slice(step * 60 % 300, step * 60 % 300 + 60)
            mon_sess.run(train_op, feed_dict={x: features[rows], y: targets[rows]})
            step += 1
    print("global step", int(final.values["global_step"]))
    if FLAGS.values and is_chief:
        np.savez(FLAGS.values, loss=history.history[-1], first_loss=history.history[0], **final.values)


if __name__ == "__main__":
    tf.app.run()
