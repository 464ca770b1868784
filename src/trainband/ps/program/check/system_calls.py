"""The system calls that a checker may make, as a seccomp filter.

An allow-list: an unlisted call is refused. A refused call fails with an error instead of ending the process, because
C libraries and XLA try calls that they can do without, and a new version of either may try others. Only calls of
another architecture, which no library makes by accident, end the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # Memory of this process.
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226),
    "madvise": (28, 233), "mincore": (27, 232), "membarrier": (324, 283), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "get_mempolicy": (239, 236), "pkey_mprotect": (329, 288), "pkey_alloc": (330, 289),
    "pkey_free": (331, 290),
    # Its threads.
    "futex": (202, 98), "futex_waitv": (449, 449), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "set_tid_address": (218, 96), "rseq": (334, 293), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "arch_prctl": (158, None), "gettid": (186, 178), "getcpu": (309, 168),
    "exit": (60, 93), "exit_group": (231, 94), "restart_syscall": (219, 128),
    # Signals to it.
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132), "setitimer": (38, 103),
    "getitimer": (36, 102), "pause": (34, None),
    # Time.
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    # Its identity and system.
    "getpid": (39, 172), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176),
    "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158),
    "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156), "getrlimit": (97, 163),
    "getrusage": (98, 165), "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278),
    # Its open files.
    "read": (0, 63), "readv": (19, 65), "pread64": (17, 67), "preadv": (295, 69), "preadv2": (327, 286),
    "write": (1, 64), "writev": (20, 66), "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "fstat": (5, 80), "fstatfs": (138, 44),
    "getdents64": (217, 61), "fadvise64": (221, 223), "readahead": (187, 213), "poll": (7, None), "ppoll": (271, 73),
    "select": (23, None), "pselect6": (270, 72), "pipe": (22, None), "pipe2": (293, 59), "eventfd2": (290, 19),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    # Names of files; Landlock decides whether their contents may be read.
    "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78),
    "getcwd": (79, 17), "statfs": (137, 43),
    # The socket to the ps. Without sendmsg and recvmsg, it cannot pass descriptors.
    "recvfrom": (45, 207), "sendto": (44, 206), "shutdown": (48, 210), "getsockname": (51, 204),
    "getpeername": (52, 205), "getsockopt": (55, 209),
}  # fmt: skip
"""Their numbers on x86_64 and on aarch64, from the kernel's asm/unistd_64.h and asm-generic/unistd.h."""
_COLUMN = {"x86_64": 0, "aarch64": 1}
_FIRST_OF_ALL = 424
"""Since Linux 5.1, new calls have the same number on all architectures, from this one on."""

_CLONE, _CLONE_THREAD = {"x86_64": 56, "aarch64": 220}, 0x00010000
_TGKILL = {"x86_64": 234, "aarch64": 131}
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_FCNTL = {"x86_64": 72, "aarch64": 25}
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030)
"""Copying a descriptor, and its flags. Not F_SETOWN, with which the kernel sends a process any signal."""
_IOCTL = {"x86_64": 16, "aarch64": 29}
_IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS and TIOCGWINSZ (is it a terminal), FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_PRCTL = {"x86_64": 157, "aarch64": 167}
_PRCTL_OPTIONS = (3, 15, 16, 39, 0x53564D41)
"""PR_GET_DUMPABLE, PR_SET_NAME and PR_GET_NAME of a thread, PR_GET_NO_NEW_PRIVS, PR_SET_VMA (names of memory)."""
_OPEN = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}
"""The calls that open files, and the index of their flags argument."""
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _ALL_THREADS = 1, 1

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL_PROCESS, _FAIL, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_X32 = 0x40000000

Instruction = tuple[int, int, int, int]
_PASS: Instruction = (_RETURN, 0, 0, _ALLOW)
_REFUSE: Instruction = (_RETURN, 0, 0, _FAIL | errno.EPERM)
_MISSING: Instruction = (_RETURN, 0, 0, _FAIL | errno.ENOSYS)
_KILL: Instruction = (_RETURN, 0, 0, _KILL_PROCESS)


def filter_calls(libc: ctypes.CDLL) -> str:
    """Limits all threads of this process to the allowed calls; returns why that is impossible, if it is."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return f"trainband has no filter for the system calls of {machine}"
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in filter_of(machine, os.getpid()))
    buffer = ctypes.create_string_buffer(program, len(program))

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

    given = Filter(len(program) // 8, ctypes.addressof(buffer))
    if libc.syscall(_SECCOMP[machine], _SET_FILTER, _ALL_THREADS, ctypes.byref(given)) != 0:
        return f"the kernel refuses a filter for system calls ({os.strerror(ctypes.get_errno())})"
    return ""


def filter_of(machine: str, pid: int) -> list[Instruction]:
    """The filter in classic BPF.

    A refused call fails with EPERM. One that is newer than Linux 5.1 fails with ENOSYS, as on an older kernel: a C
    library then takes the older call, such as clone for clone3, whose arguments a filter can see.

    Args:
      machine: x86_64 or aarch64.
      pid: of the process, which may send itself signals, as abort() does.
    """
    code: list[Instruction] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _ARCHITECTURES[machine]), _KILL, (_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), _KILL]
    for numbers in ALLOWED.values():
        number = numbers[_COLUMN[machine]]
        if number is not None:
            code += [(_EQUAL, 0, 1, number), _PASS]
    for number, argument in _OPEN[machine]:
        code += _where(number, [_argument(argument), (_ANY_BIT, 0, 1, _TO_WRITE), _REFUSE, _PASS])
    code += _where(_CLONE[machine], [_argument(0), (_ANY_BIT, 0, 1, _CLONE_THREAD), _PASS, _REFUSE])
    code += _where(_TGKILL[machine], _one_of(0, (pid,)))
    code += _where(_FCNTL[machine], _one_of(1, _FCNTL_COMMANDS))
    code += _where(_IOCTL[machine], _one_of(1, _IOCTL_COMMANDS))
    code += _where(_PRCTL[machine], _one_of(0, _PRCTL_OPTIONS))
    # Reading its own limits: pid is 0, and there is no new limit. The ps sets them.
    reading = [_argument(0), (_EQUAL, 1, 0, 0), _REFUSE]
    for half in (0, 1):
        reading += [_argument(2, half), (_EQUAL, 1, 0, 0), _REFUSE]
    code += _where(_PRLIMIT[machine], [*reading, _PASS])
    return [*code, (_AT_LEAST, 0, 1, _FIRST_OF_ALL), _MISSING, _REFUSE]


def _argument(number: int, half: int = 0) -> Instruction:
    """Loads the lower or the upper half of an argument of the call."""
    return (_LOAD, 0, 0, 16 + 8 * number + 4 * half)


def _where(number: int, then: list[Instruction]) -> list[Instruction]:
    """Runs `then`, which must end in a return, for one call."""
    return [(_EQUAL, 0, len(then), number), *then]


def _one_of(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    """Allows the call if an argument has one of these values."""
    code = [_argument(argument)]
    for value in values:
        code += [(_EQUAL, 0, 1, value), _PASS]
    return [*code, _REFUSE]
