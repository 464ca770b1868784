"""Confinement: what a checker process gives up before it reads what came from the network.

On Linux it cannot write files, leave a core dump, start a program, open a connection, or send a signal to another
process, and ends with its ps. Elsewhere the kernel has no such filters, and what remains are the limits that POSIX
knows. All of it is a second wall: the first is that the process holds nothing, and that its answer is checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FORBIDDEN: dict[str, tuple[int, ...]] = {
    # socket, connect, accept, bind, listen, fork, vfork, execve, kill, truncate, rename, mkdir, rmdir, creat, link,
    # unlink, symlink, chmod, chown, ptrace, setuid, setgid, mknod, pivot_root, chroot, mount, umount, reboot, tkill,
    # keys, their *at forms, unshare, accept4, setns, process_vm_*, bpf, execveat, userfaultfd, pidfds and io_uring
    "x86_64": (
        *(41, 42, 43, 49, 50, 57, 58, 59, 62, 76, 82, 83, 84, 85, 86, 87, 88, 90, 92, 101, 105, 106, 133, 155, 161),
        *(165, 166, 169, 200, 248, 249, 250, 258, 259, 260, 263, 264, 265, 266, 268, 272, 288, 308, 310, 311, 316),
        *(321, 322, 323, 424, 425, 434, 438),
    ),
    "aarch64": (
        *(33, 34, 35, 36, 37, 38, 39, 40, 41, 45, 51, 53, 54, 97, 117, 129, 130, 142, 144, 146, 198, 200, 201, 202),
        *(203, 217, 218, 219, 221, 242, 268, 270, 271, 276, 280, 281, 282, 424, 425, 434, 438),
    ),
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3, _OPENAT2 = 435, 437
_TGKILL = {"x86_64": 234, "aarch64": 131}
_OPEN = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}
"""The calls that open files, and which of their arguments says how."""
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _ALL_THREADS = 1, 1
_CLONE_THREAD = 0x00010000
_EPERM, _ENOSYS = 1, 38


def confine(*, parent: int) -> str:
    """Gives up what a checker does not need; returns what could not be given up, in words.

    Args:
      parent: the process with which this one ends; 0 where the thread that started it may end earlier.
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
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    if sys.platform != "linux":
        return f"{sys.platform} has no filter for system calls"
    libc = ctypes.CDLL(None, use_errno=True)
    if parent:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return _filter_calls(libc)


def _filter_calls(libc: ctypes.CDLL) -> str:
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return f"no filter for system calls is known for {machine}"
    program = _program(machine)
    buffer = ctypes.create_string_buffer(program, len(program))

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

    given = Filter(len(program) // 8, ctypes.addressof(buffer))
    if libc.syscall(_SECCOMP[machine], _SET_FILTER, _ALL_THREADS, ctypes.byref(given)) != 0:
        return f"the kernel takes no filter for system calls ({os.strerror(ctypes.get_errno())})"
    return ""


def _program(machine: str) -> bytes:
    """In classic BPF. Forbidden calls fail with EPERM; clone3 and openat2 with ENOSYS, so that libc takes older ones,
    whose arguments can be seen.
    """
    allow, refuse, missing = (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x50000 | _EPERM), (0x06, 0, 0, 0x50000 | _ENOSYS)
    code = [
        (0x20, 0, 0, 4),  # the architecture
        (0x15, 1, 0, _ARCHITECTURES[machine]),
        (0x06, 0, 0, 0x80000000),  # another one: the process is killed
        (0x20, 0, 0, 0),  # the number of the call
    ]
    if machine == "x86_64":
        code += [(0x35, 0, 1, 0x40000000), refuse]  # the x32 numbers of the same calls
    for number in (_CLONE3, _OPENAT2):
        code += [(0x15, 0, 1, number), missing]
    for number, argument in _OPEN[machine]:
        how = (0x20, 0, 0, 16 + 8 * argument)
        code += [(0x15, 0, 4, number), how, (0x45, 0, 1, _TO_WRITE), refuse, (0x20, 0, 0, 0)]
    code += [(0x15, 0, 3, _CLONE[machine]), (0x20, 0, 0, 16), (0x45, 1, 0, _CLONE_THREAD), refuse, (0x20, 0, 0, 0)]
    # A process may signal itself: that is how abort() ends it.
    code += [(0x15, 0, 4, _TGKILL[machine]), (0x20, 0, 0, 16), (0x15, 1, 0, os.getpid()), refuse, (0x20, 0, 0, 0)]
    for number in _FORBIDDEN[machine]:
        code += [(0x15, 0, 1, number), refuse]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in [*code, allow])


def allow(memory_bytes: int, time_s: float) -> None:
    """Limits for one check: so much more memory than now, and so much time, on all cores."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = _address_space()
    if used:
        wanted = used + min(memory_bytes, os.sysconf("SC_PHYS_PAGES") * resource.getpagesize())
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    spent = resource.getrusage(resource.RUSAGE_SELF)
    cores = os.cpu_count() or 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = int(spent.ru_utime + spent.ru_stime + cores * time_s) + 5
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard == resource.RLIM_INFINITY else min(seconds, hard), hard))
    signal.setitimer(signal.ITIMER_REAL, time_s + 5.0)  # should the ps be gone, or stopped


def rest() -> None:
    """Takes the limits of `allow` back."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_CPU):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (hard, hard))


def _address_space() -> int:
    """Bytes; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
