"""Confinement: the rights that a checker process gives up before it reads data from the network.

On Linux it can read only the libraries that it runs on, and it cannot write files, leave a core dump, start a program,
open a connection, or reach another process; it ends with its ps, which sets its limits. `confine` returns the parts
that a kernel cannot enforce. All of this is a second wall: the first is that the process holds no secrets and its
answer is checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import resource
import signal
import site
import struct
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from trainband.cluster.resolvers.checker_environment import library_directories
from trainband.ps.program.check.landlock import restrict_reading
from trainband.ps.program.check.system_calls import filter_calls

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES_3 = 0x20080522
_READ_AND_SEARCH_ALL = 1 << 2
"""CAP_DAC_READ_SEARCH: root reads libraries that another user has installed, as far as Landlock allows."""
_NO_CORE = 1
"""A limit of 0 bytes lets the kernel pipe a core dump to a collector; a limit of 1 byte does not (core(5))."""

_PACKAGES = ("trainband", "jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum", "msgspec")
_SITES = ("site-packages", "dist-packages")
_SYSTEM = (
    *("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache", "/nix/store"),
    *("/dev/null", "/dev/urandom", "/sys/devices/system", "/sys/kernel/mm"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm"),
)
LIMITED_BY_PS = hasattr(resource, "prlimit")
"""Whether a ps can set the limits of its checker; elsewhere the checker sets them itself."""


def confine(*, parent: int, cache: str = "") -> str:
    """Gives up the rights that a checker does not need; describes those that it could not give up.

    Args:
      parent: the process with which this one ends; 0 if the thread that started it may end earlier.
      cache: the directory of compiled programs, which it may read; empty for none.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for number in (signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")  # the kernel kills it before a ps
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with contextlib.suppress(ValueError):  # it was 0 already
        resource.setrlimit(resource.RLIMIT_CORE, (_NO_CORE, _NO_CORE))
    if sys.platform != "linux":
        return f"{sys.platform} has no filter for system calls"
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _drop_capabilities(libc)
    if parent:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)
    lacking = [restrict_reading(libc, readable(cache)), _threads_before(), filter_calls(libc)]
    return "; ".join(one for one in lacking if one)


def readable(cache: str = "") -> Iterator[Path]:
    """The paths that a checker may read: Python, the packages that it imports, and the system files that these need.

    It leaves out the rest of `sys.path`, whose first directory is that of the user's script.
    """
    yield from map(Path, _SYSTEM)
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        yield Path(sysconfig.get_path(name))
    for prefix in {sys.prefix, sys.base_prefix}:
        yield from (Path(prefix, "lib"), Path(prefix, "lib64"))
    if site.ENABLE_USER_SITE:
        yield Path(site.getusersitepackages())
    for name in _PACKAGES:
        found = importlib.util.find_spec(name)
        for place in (found.submodule_search_locations or ()) if found is not None else ():
            yield parent if (parent := Path(place).resolve().parent).name in _SITES else Path(place)
    yield from library_directories()
    if cache:
        yield Path(cache)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Drops the capabilities of root or a container, which could, for example, raise the limits again."""
    words = 6  # effective, permitted and inheritable, of the lower 32 capabilities and then of the others
    found = (ctypes.c_uint32 * words)()
    header = struct.pack("=Ii", _CAPABILITIES_3, 0)
    if libc.capget(header, found) == 0:
        kept = [value & (_READ_AND_SEARCH_ALL if number < 2 else 0) for number, value in enumerate(found)]
        libc.capset(header, (ctypes.c_uint32 * words)(*kept))


def _threads_before() -> str:
    """Describes the threads that already run: Landlock binds only the calling thread, so they keep their rights."""
    try:
        others = len(os.listdir("/proc/self/task")) - 1  # noqa: PTH208 - names are enough
    except OSError:
        return ""
    return f"{others} threads run already, which can read the files of its user" if others else ""


def limit(pid: int, memory_bytes: int, time_s: float) -> None:
    """Limits the memory and the time of a checker for one check; the next one needs new limits.

    Args:
      pid: of the checker; of this process if `LIMITED_BY_PS` is false.
      memory_bytes: memory beyond what it has now.
      time_s: time on all cores.

    Raises:
      OSError: the process has ended.
    """
    used = _pages(pid, 0)
    if used:
        _set_limit(pid, resource.RLIMIT_AS, used + min(memory_bytes, physical_memory()))
    _set_limit(pid, resource.RLIMIT_CPU, int(_cpu_s(pid) + (os.cpu_count() or 1) * time_s) + 5)


def physical_memory() -> int:
    """The memory of this machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()


def _set_limit(pid: int, number: int, wanted: int) -> None:
    if LIMITED_BY_PS:
        _, hard = resource.prlimit(pid, number)
        resource.prlimit(pid, number, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    else:
        _, hard = resource.getrlimit(number)
        resource.setrlimit(number, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def resident_bytes(pid: int) -> int:
    """The memory of a process, with what it shares; 0 if unknown."""
    return _pages(pid, 1)


def _pages(pid: int, field: int) -> int:
    """A field of proc_pid_statm(5), in bytes; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[field]) * resource.getpagesize()
    except (FileNotFoundError, ValueError, IndexError):
        return 0


def _cpu_s(pid: int) -> float:
    """CPU seconds of all its threads."""
    if pid == os.getpid():
        spent = resource.getrusage(resource.RUSAGE_SELF)
        return spent.ru_utime + spent.ru_stime
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
