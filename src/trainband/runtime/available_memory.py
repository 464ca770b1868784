"""The memory that this process may still take, and how often the kernel has killed a process for want of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainband.errors import ResourceExhausted
from trainband.runtime.formatting import size

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""A control group of version 1 without a limit has about 8 EiB."""


class _Group(NamedTuple):
    """The files of a control group, by version. Sources: the kernel's cgroup-v1/memory.rst and cgroup-v2.rst."""

    limit: str
    usage: str
    reclaimable: str
    kills: str


_VERSION_1 = _Group("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control")
_VERSION_2 = _Group("memory.max", "memory.current", "inactive_file", "memory.events")


def available_bytes(root: Path = _ROOT) -> int | None:
    """Returns the memory that this process may still take: of the machine and of its control groups; `None` if unknown.

    Args:
      root: below which `/proc` and `/sys` are.
    """
    found = []
    with suppress(OSError, KeyError):
        found.append(_fields(root / "proc/meminfo")["MemAvailable"] << 10)
    for directory, names in _groups(root):
        with suppress(OSError, ValueError):  # "max"
            limit = int((directory / names.limit).read_text())
            if limit < _UNLIMITED:
                used = int((directory / names.usage).read_text())
                cache = _fields(directory / "memory.stat").get(names.reclaimable, 0)
                found.append(max(0, limit - used + cache))
    return min(found, default=None)


def oom_kills(root: Path = _ROOT) -> int:
    """Returns how often the kernel has killed a process for want of memory: of this control group, or machine."""
    for directory, names in _groups(root):
        with suppress(OSError, KeyError):
            return _fields(directory / names.kills)["oom_kill"]
    with suppress(OSError, KeyError):
        return _fields(root / "proc/vmstat")["oom_kill"]
    return 0


class OomKills:
    """Tells which tasks of this machine the kernel killed for want of memory. Each kill is told once."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._seen = oom_kills(root)

    def take(self) -> bool:
        """Whether there has been a kill that was not told before; tells it."""
        is_new = oom_kills(self._root) > self._seen
        self._seen += is_new
        return is_new


def require_memory(task: str, nbytes: int, what: str, advice: str, available: int | None) -> None:
    """Ensures that a task can hold something before it allocates it.

    Args:
      nbytes: the least that it needs.
      what: what that consists of.
      advice: what to do, as a sentence without its end.
      available: as `available_bytes` returned it.

    Raises:
      ResourceExhausted: there is less.
    """
    if available is not None and available < nbytes:
        raise ResourceExhausted(
            f"{task} needs at least {size(nbytes)} of memory for this model ({what}), but only {size(available)} is "
            f"available to it: {advice}."
        )


def _groups(root: Path) -> Iterator[tuple[Path, _Group]]:
    """The control groups of this process that limit memory, from the innermost."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            mounted = root / "sys/fs/cgroup"
            if "memory" in controllers.split(","):
                base, names = mounted / "memory", _VERSION_1
            elif not controllers:
                base, names = mounted / "unified" if (mounted / "unified").is_dir() else mounted, _VERSION_2
            else:
                continue
            inner = base / path.lstrip("/")
            for directory in (inner, *inner.parents):
                if directory.is_relative_to(base) and (directory / names.limit).exists():
                    yield directory, names


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file with a name and a number a line."""
    words = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}
