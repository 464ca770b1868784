"""The job of `examples/mnist.py` beside which others are measured: 1 ps, some workers, no end."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.environments import ROOT, our_environment
from bench.processes import Processes
from trainband.errors import PeerError
from trainband.monitor.inquiry import Inquiry

WARM = 500
"""Updates after which the job counts as running."""


@dataclass(frozen=True, slots=True)
class Window:
    """The counts of a stretch of time.

    Attributes:
      steps: updates of the ps.
      seconds: that it lasted.
      job_cpu_s: processor seconds of the job's tasks.
      beside_cpu_s: and of what ran beside them.
    """

    steps: int
    seconds: float
    job_cpu_s: float
    beside_cpu_s: float

    @property
    def steps_s(self) -> float:
        """Updates per second."""
        return self.steps / self.seconds

    @property
    def cpu_s(self) -> float:
        """Processor seconds of all together for each update."""
        return (self.job_cpu_s + self.beside_cpu_s) / self.steps


def ratios_of(windows: Sequence[Window], alone: Sequence[Window]) -> dict[str, Any]:
    """How fast the job was in windows, of what it was in those beside them: the median and the quartiles."""
    ratios = [one.steps_s / other.steps_s for one, other in zip(windows, alone, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {"ratio": statistics.median(ratios), "ratio_quartiles": [quartiles[0], quartiles[2]]}


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

    def window(self, seconds: float, beside: str) -> Window:
        """Counts the work of the job, and of other processes under this name, in this many seconds."""
        used, before, since = self._cpu_s(beside), self.version(), time.monotonic()
        self._processes.wait_a_while(seconds)
        steps, took_s = self.version() - before, time.monotonic() - since
        job_s, beside_s = (now - then for now, then in zip(self._cpu_s(beside), used, strict=True))
        return Window(steps, took_s, job_s, beside_s)

    def _cpu_s(self, beside: str) -> tuple[float, float]:
        """The processor seconds of the job's tasks, and of what runs beside them under this name."""
        usage = self._processes.usage()
        return sum(usage[task].cpu_s for task in self._tasks), usage[beside].cpu_s
