"""Devices are told, and the CPU is divided, before JAX starts."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import trainband.compat.tf2 as tf
from trainband.spmd.inside import backends_have_started
cpu, = tf.config.list_physical_devices("CPU")
assert not backends_have_started(), "telling the devices has started JAX"
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
assert len(tf.config.list_logical_devices("CPU")) == 2
strategy = tf.distribute.MirroredStrategy()
ids = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
print(sorted(int(one) for one in strategy.experimental_local_results(ids)))
"""


def test_the_cpu_is_divided_into_replicas() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100.0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[0, 1]"
