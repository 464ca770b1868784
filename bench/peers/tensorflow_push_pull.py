"""TensorFlow's ps applying SGD to a variable of which a worker pushes the gradient and pulls the new value.

The gradient is a variable on the worker, so a round moves tensors between the two servers only (TensorFlow's Send and
Recv over gRPC), and none through feed_dict or into Python; of the pulled value a single number is fetched. A tensor
must stay below TensorFlow's 2 GB for one message.

It keeps the contract of `bench.push_pull`, and also needs --worker_address: TensorFlow's servers call each other.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow.compat.v1 as tf

LEARNING_RATE = 0.01


def main() -> None:
    """Run the role that the flags name; a ps serves until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["ps", "worker"], required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--worker_address", required=True)
    parser.add_argument("--millions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    cluster = tf.train.ClusterSpec({"ps": [flags.address], "worker": [flags.worker_address]})
    server = tf.train.Server(cluster, job_name=flags.role, task_index=0)
    if flags.role == "ps":
        server.join()
    print(json.dumps({"seconds": work(server.target, flags.millions * 1_000_000, flags.rounds)}), flush=True)


def work(target: str, values: int, rounds: int) -> list[float]:
    """Push and pull; give each round's seconds."""
    with tf.device("/job:ps"):
        params = tf.get_variable("params", initializer=tf.ones([values]))
    with tf.device("/job:worker"):
        gradient = tf.get_variable("gradient", initializer=tf.ones([values]), trainable=False)
        pushed = tf.identity(gradient)
    applied = tf.train.GradientDescentOptimizer(LEARNING_RATE).apply_gradients([(pushed, params)])
    with tf.control_dependencies([applied]):
        with tf.device("/job:ps"):
            value = params.read_value()
        with tf.device("/job:worker"):
            last = tf.strided_slice(tf.identity(value), [values - 1], [values])
    seconds = []
    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        for number in range(rounds):
            begin = time.perf_counter()
            found = session.run(last)[0]
            seconds.append(time.perf_counter() - begin)
            wanted = 1 - (number + 1) * LEARNING_RATE
            if abs(found - wanted) > 1e-4:
                raise SystemExit(f"The last value is {found}, wanted {wanted}.")
    return seconds


if __name__ == "__main__":
    main()
