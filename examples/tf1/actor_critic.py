"""Asynchronous actor-critic: each worker plays with its own network, and trains the shared one."""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 600, "Global step to stop at")
FLAGS = flags.FLAGS

PLACES, GOAL, LIMIT = 7, 6, 30


class Corridor:
    """A corridor in which the agent walks left or right; at its right end is the reward."""

    def __init__(self, seed):
        self.random = np.random.RandomState(seed)
        self.reset()

    def reset(self):
        self.place, self.moves = self.random.randint(PLACES - 1), 0
        return np.eye(PLACES)[self.place]

    def step(self, action):
        self.place = max(0, self.place + (1 if action else -1))
        self.moves += 1
        done = self.place == GOAL or self.moves == LIMIT
        return np.eye(PLACES)[self.place], float(self.place == GOAL) - 0.02, done


class Network:
    def __init__(self, scope):
        self.states = tf.placeholder(tf.float32, [None, PLACES])
        with tf.variable_scope(scope):
            hidden = tf.layers.dense(self.states, 32, tf.nn.relu, name="hidden")
            self.policy = tf.nn.softmax(tf.layers.dense(hidden, 2, name="policy"))
            self.value = tf.squeeze(tf.layers.dense(hidden, 1, name="value"), 1)
        self.variables = tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES, scope)


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    worker = "/job:worker/task:%d" % FLAGS.task_index
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        step = tf.train.get_or_create_global_step()
        shared = Network("shared")
    with tf.device(worker):
        own = Network("own_%d" % FLAGS.task_index)
        actions = tf.placeholder(tf.int32, [None])
        returns = tf.placeholder(tf.float32, [None])
        advantage = returns - own.value
        chosen = tf.reduce_sum(own.policy * tf.one_hot(actions, 2), 1)
        entropy = -tf.reduce_sum(own.policy * tf.log(own.policy + 1e-8))
        policy_loss = -tf.reduce_sum(tf.log(chosen + 1e-8) * tf.stop_gradient(advantage))
        loss = policy_loss + 0.5 * tf.reduce_sum(tf.square(advantage)) - 0.01 * entropy
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, own.variables), 5.0)
        optimizer = tf.train.RMSPropOptimizer(0.005)
        train_op = optimizer.apply_gradients(zip(gradients, shared.variables), global_step=step)
        copy = tf.group(*[mine.assign(theirs) for mine, theirs in zip(own.variables, shared.variables)])

    corridor, lengths, seen = Corridor(FLAGS.task_index), [], 0
    init_local = tf.variables_initializer(own.variables)
    scaffold = tf.train.Scaffold(
        init_op=tf.variables_initializer([*shared.variables, step]),
        local_init_op=init_local,
        ready_op=tf.report_uninitialized_variables([*shared.variables, step]),
    )
    with tf.train.MonitoredTrainingSession(server.target, FLAGS.task_index == 0, scaffold=scaffold) as sess:
        random = np.random.RandomState(FLAGS.task_index)
        while seen < FLAGS.steps:
            sess.run(copy)
            state, done, states, moves, rewards = corridor.reset(), False, [], [], []
            while not done:
                p = sess.run(own.policy, {own.states: [state]})[0]
                moves.append(int(random.uniform() < p[1]))
                states.append(state)
                state, reward, done = corridor.step(moves[-1])
                rewards.append(reward)
            total, discounted = 0.0, []
            for reward in reversed(rewards):
                total = reward + 0.95 * total
                discounted.insert(0, total)
            _, seen = sess.run([train_op, step], {own.states: states, actions: moves, returns: discounted})
            lengths.append(corridor.moves)
    print(
        "worker %d, %.1f moves at first, %.1f at last"
        % (FLAGS.task_index, np.mean(lengths[:20]), np.mean(lengths[-50:]))
    )


if __name__ == "__main__":
    tf.app.run()
