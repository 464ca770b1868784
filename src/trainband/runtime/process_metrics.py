"""What a process has used: the metrics that the client libraries of Prometheus call by these names, too.

Source: https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from trainband.runtime.exposition import Family, Labels
from trainband.runtime.memory import resident_bytes
from trainband.version import VERSION

_PROC = Path("/proc")


def process_families(labels: Labels) -> list[Family]:
    """CPU time, memory, open files and start of this process; outside Linux, only its CPU time.

    Args:
      labels: of every sample.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    info = (*labels, ("version", VERSION))
    found = [
        Family("gauge", "trainband_build_info", "The version of trainband; always 1.", {info: 1.0}),
        Family("counter", "process_cpu_seconds_total", "CPU time spent, user and system.", {labels: cpu_s}),
    ]
    if not (_PROC / "self" / "stat").exists():
        return found
    # After the name of the program, which may hold anything: see proc_pid_stat(5), whose fields count from 1.
    fields = (_PROC / "self" / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    virtual = int(fields[20])
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    stat = (_PROC / "stat").read_text(encoding="utf-8").splitlines()
    booted = next((float(line.split()[1]) for line in stat if line.startswith("btime ")), None)
    descriptors = sum(1 for _ in (_PROC / "self" / "fd").iterdir())
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    gauges = {
        "process_resident_memory_bytes": ("Memory in use.", float(resident_bytes())),
        "process_virtual_memory_bytes": ("Address space in use.", float(virtual)),
        "process_open_fds": ("File descriptors in use.", float(descriptors)),
        "process_max_fds": ("File descriptors that it may use.", float(most)),
    }
    if booted is not None:
        gauges["process_start_time_seconds"] = ("When it was started, in Unix time.", booted + started_s)
    return found + [Family("gauge", name, text, {labels: value}) for name, (text, value) in gauges.items()]
