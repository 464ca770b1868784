"""The job of `examples/mnist.py` beside which others are measured: 1 ps, some workers, no end."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.environments import ROOT, our_environment
from bench.processes import Processes
from trainband.errors import PeerError
from trainband.monitor.inquiry import Inquiry

WARM = 500
"""Updates after which the job counts as running."""


class MnistJob:
    """A job whose updates are counted. Starts its tasks, and returns when they train.

    Args:
      processes: start and end the tasks.
      addresses: of the ps, and of each worker.
      hidden: units of the network.
      deadline_s: for the job to come up.
    """

    def __init__(self, processes: Processes, addresses: list[str], hidden: int, deadline_s: float) -> None:
        ps, *workers = addresses
        self.environment = {**our_environment(len(workers)), "TRAINBAND_INSECURE": "1"}
        """Of the tasks, and of what joins or watches them."""
        self._processes = processes
        program: list[str | Path] = [sys.executable, ROOT / "examples" / "mnist.py", "--train_steps", "100000000"]
        program += ["--ps_hosts", ps, "--worker_hosts", ",".join(workers)]
        program += ["--hidden_units", str(hidden), "--device", "cpu"]
        self._tasks = ["ps:0", *(f"worker:{index}" for index in range(len(workers)))]
        for task in self._tasks:
            job, _, index = task.partition(":")
            processes.start(task, [*program, "--job_name", job, "--task_index", index], self.environment)
        self._inquiry = Inquiry(ps, 5.0)
        processes.wait_for("the job trains", lambda: self.version() > WARM, deadline_s)

    def version(self) -> int:
        """Of the ps; 0 while it cannot be asked."""
        try:
            return self._inquiry.ask().version
        except PeerError:
            return 0

    def cpu_s(self, beside: str) -> tuple[float, float]:
        """The processor seconds of the job's tasks, and of what runs beside them under this name."""
        usage = self._processes.usage()
        return sum(usage[task].cpu_s for task in self._tasks), usage[beside].cpu_s
