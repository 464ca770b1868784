"""What a process is to the machine: what it costs to end it."""

from __future__ import annotations

import subprocess
import sys


def test_a_task_of_a_cluster_leaves_what_is_loaded_to_no_collection() -> None:
    """Or each that ends costs half a second of a processor, and all those of a machine end at the same time."""
    program = (
        "import gc, trainband\n"
        "cluster = trainband.cluster.resolve(ps_hosts='a:1', worker_hosts='b:1', job_name='worker', task_index=0)\n"
        "print(gc.get_freeze_count() > 50_000)\n"
        "trainband.ParameterServer(cluster)\n"
        "print(gc.get_freeze_count() > 50_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\nTrue\n"
