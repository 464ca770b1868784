"""The processes of one measured case: started together, observed from outside, and gone afterwards in any event."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_POLL_S = 0.005
_SAMPLE_S = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CaseFailed(Exception):
    """A process of the case failed or was late; the message holds the end of what it said."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that one task, with all its children, has used so far.

    Attributes:
      cpu_s: processor seconds, user and system.
      peak_mib: the largest resident memory, in MiB; the sum of the peaks where a task has children.
    """

    cpu_s: float
    peak_mib: float


class Processes:
    """Starts tasks, each in a session of its own, and kills all that is left of their groups on leaving.

    Args:
      directory: an empty directory, for what the tasks print.
    """

    def __init__(self, directory: Path) -> None:
        """Start nothing yet."""
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._usage: dict[str, Usage] = {}

    def __enter__(self) -> Self:
        """Make a request to end us (SIGTERM) an exception, so that nothing is left running then either."""
        self._handler = signal.signal(signal.SIGTERM, _exit_on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill every process that was started, and its group; what a launcher has started, it ends itself."""
        for process in self._running.values():
            # The leader may have ended before its children; its group lasts until they end.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._running.values():
            process.wait()
        signal.signal(signal.SIGTERM, self._handler)

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Start one task; environment is added to ours."""
        with self._path(name, "out").open("wb") as out, self._path(name, "err").open("wb") as err:
            self._running[name] = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def wait_for(
        self,
        what: str,
        condition: Callable[[], bool],
        deadline_s: float,
        sample: Callable[[], object] | None = None,
        every_s: float = _SAMPLE_S,
    ) -> None:
        """Wait until a condition holds, and sample the tasks every `every_s` seconds: by default, their `usage`.

        Raises:
          CaseFailed: a task ended with an error, or deadline_s seconds passed first.
        """
        begin = sampled = time.monotonic()
        while not condition():
            for name, process in self._running.items():
                if process.poll() not in (None, 0):
                    raise CaseFailed(f"{name} ended with {process.returncode} before {what}.{self._said([name])}")
            now = time.monotonic()
            if now - begin > deadline_s:
                raise CaseFailed(f"Waited {deadline_s} s for {what}, in vain.{self._said(self._running)}")
            if now - sampled > every_s:
                sampled = now
                (sample or self.usage)()
            time.sleep(_POLL_S)

    def wait_a_while(self, seconds: float) -> None:
        """Let the tasks run for a while.

        Raises:
          CaseFailed: a task ended with an error.
        """
        end = time.monotonic() + seconds
        self.wait_for(f"{seconds} s were over", lambda: time.monotonic() >= end, seconds + _SAMPLE_S)

    def wait_for_end(
        self,
        names: Sequence[str],
        deadline_s: float,
        sample: Callable[[], object] | None = None,
        every_s: float = _SAMPLE_S,
    ) -> None:
        """Wait until these tasks have ended; the rest as for `wait_for`."""
        tasks = [self._running[name] for name in names]

        def have_ended() -> bool:
            return all(task.poll() == 0 for task in tasks)

        self.wait_for(f"the end of {', '.join(names)}", have_ended, deadline_s, sample, every_s)

    def usage(self) -> dict[str, Usage]:
        """Return the use of each task, from /proc; of a task that has ended, what was last seen."""
        stats = _stats()
        parents = {pid: int(fields[1]) for pid, fields in stats.items()}
        for name, process in self._running.items():
            if process.pid in stats:
                pids = [pid for pid in parents if _descends(pid, process.pid, parents)]
                peaks = sum(_memory_mib(pid, "status", "VmHWM") for pid in pids)
                peak_before = self._usage[name].peak_mib if name in self._usage else 0.0
                cpu_s = sum(_cpu_s(pid, stats[pid]) for pid in pids)
                self._usage[name] = Usage(cpu_s, max(peaks, peak_before))
        return dict(self._usage)

    def memory_mib(self) -> dict[str, float]:
        """Return what each living task and its children take now; memory that several share is divided among them."""
        parents = {pid: int(fields[1]) for pid, fields in _stats().items()}
        return {
            name: sum(
                _memory_mib(pid, "smaps_rollup", "Pss") for pid in parents if _descends(pid, process.pid, parents)
            )
            for name, process in self._running.items()
        }

    def threads_and_descriptors(self, name: str) -> tuple[int, int]:
        """Return how many threads and open file descriptors a task has; zeros of one that has ended."""
        process = Path("/proc") / str(self._running[name].pid)
        with suppress(OSError):
            return len(list((process / "task").iterdir())), len(list((process / "fd").iterdir()))
        return 0, 0

    def result(self, name: str) -> dict[str, Any]:
        """Return the JSON object that a task printed as its last line.

        Raises:
          CaseFailed: it printed none.
        """
        for line in reversed(self._path(name, "out").read_text(errors="replace").splitlines()):
            if line.startswith("{"):
                result: dict[str, Any] = json.loads(line)
                return result
        raise CaseFailed(f"{name} printed no line of JSON.{self._said([name])}")

    def _path(self, name: str, stream: str) -> Path:
        return self._directory / f"{name.replace(':', '-')}.{stream}"

    def _said(self, names: Sequence[str] | Mapping[str, object]) -> str:
        """Return the end of what tasks printed, for an error message."""
        parts = []
        for name in names:
            for stream in ("out", "err"):
                text = self._path(name, stream).read_text(errors="replace").strip()
                if text:
                    parts.append(f"\n--- {name}, std{stream}:\n{text[-2000:]}")
        return "".join(parts)


def free_addresses(count: int) -> list[str]:
    """Return this many free addresses on the loopback interface."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _stats() -> dict[int, list[str]]:
    """Return the fields of /proc/PID/stat after the name, of all processes."""
    stats: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name in parentheses may hold spaces; the parent is field 4, utime to cstime are 14 to 17.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    stats[int(entry.name)] = fields
    return stats


def _exit_on_signal(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _cpu_s(pid: int, fields: Sequence[str]) -> float:
    """Return the processor seconds of a live process and of its children that have ended; fields as in /proc."""
    ended_s = sum(map(int, fields[13:15])) / _TICKS_PER_S
    # Linux makes the number of a process's own clock so (clock_getcpuclockid(3)); it counts nanoseconds where /proc
    # counts ticks of 10 ms, too coarse for a ps that is idle most of the time.
    with suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2) + ended_s
    return sum(map(int, fields[11:13])) / _TICKS_PER_S + ended_s


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    """Say whether a process is another one, or was started by it or its children."""
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor


def _memory_mib(pid: int, file: str, field: str) -> float:
    """Return a field of a file in /proc/PID of a live process, in MiB, such as `VmHWM` of `status`, its peak."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    return 0.0
