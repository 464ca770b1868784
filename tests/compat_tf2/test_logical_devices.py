"""Devices are told, and the CPU is divided, before JAX starts."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import trainband.compat.tf2 as tf
from trainband.spmd.jax_internals import backends_have_started
cpu, = tf.config.list_physical_devices("CPU")
assert not backends_have_started(), "telling the devices has started JAX"
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
assert len(tf.config.list_logical_devices("CPU")) == 2
strategy = tf.distribute.MirroredStrategy()
ids = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)

average = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
count = tf.Variable(0, aggregation=tf.VariableAggregation.SUM)


@tf.function
def step(batch):
    strategy.run(update, (batch,))


def update(x):
    average.assign((average + tf.reduce_mean(x)) / 2.0)
    count.assign_add(tf.size(x))


for batch in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices([3.0, 5.0, 7.0]).batch(2)):
    step(batch)
assert (float(average), int(count)) == (4.75, 3), "a replica without examples counts in a mean"
print(sorted(int(one) for one in strategy.experimental_local_results(ids)))
"""


def test_the_cpu_is_divided_into_replicas() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100.0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[0, 1]"
