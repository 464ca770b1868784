"""The memory use of this process and of those that it started, and what a task may still allocate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainband.runtime.formatting import size

PARTS = ("params", "state", "gradients", "versions", "buffers", "rest")
"""Parts of a task's memory: the current params; the optimizer's state on a ps, the worker's on a worker; gradients in
flight or held; older versions of the params and the state, kept or spare; memory of the transports; and Python, JAX,
compiled programs and data.
"""

EACH_S = 1.0
"""Minimum seconds between readings."""
COST = 100
"""A reading walks the page tables: 40 ms for 10 GB. It may take one part in this many of a core's time."""

_PROC = Path("/proc")


class ProcessMemory(NamedTuple):
    """Memory of a process and its children, in bytes; what several processes share is divided among them.

    Attributes:
      total: proportional set size (PSS); resident memory where a process does not tell that; 0 without /proc.
      shared: the part in shared memory, such as the segments of a stream.
    """

    total: int = 0
    shared: int = 0


def resident_bytes(pid: int | str = "self") -> int:
    """Returns the resident memory of a process, in bytes; 0 without /proc.

    Source: proc_pid_statm(5). It takes about 20 microseconds.
    """
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux, or it has ended
        return 0


def process_memory(pid: int | str = "self") -> ProcessMemory:
    """Returns the memory of a process and of all that it has started.

    Source: proc_pid_smaps(5), proc_tid_children(5).
    """
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
        kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        total, shared = kilobytes["Pss"] << 10, kilobytes.get("Pss_Shmem", 0) << 10
    except (OSError, KeyError):
        total, shared = resident_bytes(pid), 0
    for child in _children(pid):
        one = process_memory(child)
        total, shared = total + one.total, shared + one.shared
    return ProcessMemory(total, shared)


def _children(pid: int | str) -> list[str]:
    found: list[str] = []
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError):
                found += (thread / "children").read_text().split()
    return found


class MemoryReader:
    """Reads this process's memory, at most once a second, and more seldom if a reading takes long. Thread-safe."""

    def __init__(
        self,
        read: Callable[[], ProcessMemory],
        clock: Callable[[], float],
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._read = read
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._due = float("-inf")
        self.last = ProcessMemory()

    def __call__(self) -> ProcessMemory:
        """Returns the last reading."""
        now = self._clock()
        if now >= self._due:
            self._due = now + EACH_S  # no second thread reads meanwhile
            begin = self._cpu_clock()
            self.last = self._read()
            self._due = now + max(EACH_S, COST * (self._cpu_clock() - begin))
        return self.last


def by_part(total: int, known: Mapping[str, int]) -> dict[str, int]:
    """Returns the bytes of each of `PARTS`; `rest` is what remains of the total. Empty if the total is unknown."""
    if not total:
        return {}
    rest = max(0, total - sum(known.values()))
    return {**{part: known.get(part, 0) for part in PARTS[:-1]}, PARTS[-1]: rest}


def parts_text(parts: Mapping[str, int]) -> str:
    """Formats the parts for people, without those that are empty: `params 400.0 MB, rest 300.0 MB`."""
    return ", ".join(f"{part} {size(nbytes)}" for part, nbytes in parts.items() if nbytes)
