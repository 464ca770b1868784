"""The resource use of a process, in metrics with the names of Prometheus' client libraries.

Source: https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from trainband.runtime.exposition import Families
from trainband.runtime.memory import resident_bytes
from trainband.version import VERSION

_PROC = Path("/proc")


def process_families(task: str) -> Families:
    """Returns CPU time, memory, open files and start of this process; outside Linux, only its CPU time."""
    found = Families()
    label = ("task", task)
    found.gauge("trainband_build_info", "The version of trainband; always 1.", 1.0, label, ("version", VERSION))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found.counter(
        "process_cpu_seconds_total", "CPU time spent, user and system.", usage.ru_utime + usage.ru_stime, label
    )
    if not (_PROC / "self" / "stat").exists():
        return found
    # After the name of the program, which may contain anything: see proc_pid_stat(5), which counts fields from 1.
    fields = (_PROC / "self" / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    stat = (_PROC / "stat").read_text(encoding="utf-8").splitlines()
    booted = next((float(line.split()[1]) for line in stat if line.startswith("btime ")), None)
    descriptors = sum(1 for _ in (_PROC / "self" / "fd").iterdir())
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found.gauge("process_resident_memory_bytes", "Memory in use.", resident_bytes(), label)
    found.gauge("process_virtual_memory_bytes", "Address space in use.", int(fields[20]), label)
    found.gauge("process_open_fds", "File descriptors in use.", descriptors, label)
    found.gauge("process_max_fds", "File descriptors that it may use.", most, label)
    if booted is not None:
        text = "When it was started, in Unix time."
        found.gauge("process_start_time_seconds", text, booted + started_s, label)
    return found
