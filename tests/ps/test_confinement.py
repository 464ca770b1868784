"""What a confined checker can do: a process tries it, and an interpreter runs the filters of both architectures."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.programs import ROOT

from trainband.cluster.resolvers.checker_environment import checker_environment
from trainband.ps.program.check import checker, checker_process, confinement, system_calls
from trainband.ps.program.check.landlock import restrict_reading, ruleset_of
from trainband.ps.program.check.system_calls import Instruction, filter_of

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has seccomp and Landlock")
PID = 4242
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
KILLED = "killed"


def decide(code: list[Instruction], architecture: int, number: int, *arguments: int) -> str | int:
    """What the kernel does with a call: 0 for running it, an errno, or `KILLED`. The interpreter of classic BPF."""
    words = {0: number, 4: architecture}
    for index, value in enumerate(arguments):
        words[16 + 8 * index], words[20 + 8 * index] = value & 0xFFFFFFFF, (value >> 32) & 0xFFFFFFFF
    at = accumulator = 0
    while True:
        kind, if_true, if_false, operand = code[at]
        match kind:
            case 0x20:
                accumulator = words.get(operand, 0)
                at += 1
            case 0x06:
                return KILLED if operand == 0x80000000 else 0 if operand == 0x7FFF0000 else operand & 0xFFFF
            case _:
                holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: accumulator & operand}[kind]
                at += 1 + (if_true if holds else if_false)


CALLS: list[tuple[str, int | None, int | None, tuple[int, ...], int]] = [
    # name, its numbers on x86_64 and aarch64, arguments, and what becomes of it
    ("read", 0, 63, (3,), 0),
    ("mmap", 9, 222, (), 0),
    ("mprotect", 10, 226, (), 0),
    ("futex", 202, 98, (), 0),
    ("openat to read", 257, 56, (0, 0, os.O_CLOEXEC), 0),
    ("openat to write", 257, 56, (0, 0, os.O_WRONLY), errno.EPERM),
    ("openat to write and read", 257, 56, (0, 0, os.O_RDWR), errno.EPERM),
    ("openat to make", 257, 56, (0, 0, os.O_CREAT), errno.EPERM),
    ("openat to cut", 257, 56, (0, 0, os.O_TRUNC), errno.EPERM),
    ("openat2", 437, 437, (), errno.ENOSYS),
    ("clone of a thread", 56, 220, (0x003D0F00,), 0),
    ("clone of a process", 56, 220, (17,), errno.EPERM),
    ("clone3", 435, 435, (), errno.ENOSYS),
    ("tgkill of itself", 234, 131, (PID, 1, 6), 0),
    ("tgkill of another", 234, 131, (PID + 1, 1, 6), errno.EPERM),
    ("fcntl F_GETFL", 72, 25, (3, 3), 0),
    ("fcntl F_SETOWN", 72, 25, (3, 8, 1), errno.EPERM),
    ("fcntl F_SETSIG", 72, 25, (3, 10, 9), errno.EPERM),
    ("ioctl FIONBIO", 16, 29, (3, 0x5421), 0),
    ("ioctl FIOSETOWN", 16, 29, (3, 0x8901), errno.EPERM),
    ("ioctl TIOCSTI", 16, 29, (0, 0x5412), errno.EPERM),
    ("prctl PR_SET_NAME", 157, 167, (15,), 0),
    ("prctl PR_SET_PDEATHSIG", 157, 167, (1, 0), errno.EPERM),
    ("prctl PR_SET_PTRACER", 157, 167, (0x59616D61,), errno.EPERM),
    ("prlimit64 to read", 302, 261, (0, 7, 0, 1), 0),
    ("prlimit64 of another", 302, 261, (1, 7, 0, 1), errno.EPERM),
    ("prlimit64 to set", 302, 261, (0, 7, 0x1000, 0), errno.EPERM),
    ("prlimit64 to set from a high address", 302, 261, (0, 7, 0x7F0000000000, 0), errno.EPERM),
    ("setrlimit", 160, 164, (), errno.EPERM),
    ("kill", 62, 129, (), errno.EPERM),
    ("tkill", 200, 130, (), errno.EPERM),
    ("rt_sigqueueinfo", 129, 138, (), errno.EPERM),
    ("rt_tgsigqueueinfo", 297, 240, (), errno.EPERM),
    ("pidfd_send_signal", 424, 424, (), errno.ENOSYS),
    ("pidfd_getfd", 438, 438, (), errno.ENOSYS),
    ("ptrace", 101, 117, (), errno.EPERM),
    ("process_vm_readv", 310, 270, (), errno.EPERM),
    ("process_vm_writev", 311, 271, (), errno.EPERM),
    ("process_madvise", 440, 440, (), errno.ENOSYS),
    ("kcmp", 312, 272, (), errno.EPERM),
    ("chmod", 90, None, (), errno.EPERM),
    ("fchmod", 91, 52, (), errno.EPERM),
    ("fchmodat", 268, 53, (), errno.EPERM),
    ("fchmodat2", 452, 452, (), errno.ENOSYS),
    ("chown", 92, None, (), errno.EPERM),
    ("fchown", 93, 55, (), errno.EPERM),
    ("fchownat", 260, 54, (), errno.EPERM),
    ("setxattr", 188, 5, (), errno.EPERM),
    ("fsetxattr", 190, 7, (), errno.EPERM),
    ("setxattrat", 463, 463, (), errno.ENOSYS),
    ("utimensat", 280, 88, (), errno.EPERM),
    ("truncate", 76, 45, (), errno.EPERM),
    ("ftruncate", 77, 46, (), errno.EPERM),
    ("fallocate", 285, 47, (), errno.EPERM),
    ("unlinkat", 263, 35, (), errno.EPERM),
    ("linkat", 265, 37, (), errno.EPERM),
    ("symlinkat", 266, 36, (), errno.EPERM),
    ("mkdirat", 258, 34, (), errno.EPERM),
    ("mknodat", 259, 33, (), errno.EPERM),
    ("renameat2", 316, 276, (), errno.EPERM),
    ("sched_setscheduler", 144, 119, (), errno.EPERM),
    ("sched_setaffinity", 203, 122, (), errno.EPERM),
    ("setpriority", 141, 140, (), errno.EPERM),
    ("ioprio_set", 251, 30, (), errno.EPERM),
    ("shmget", 29, 194, (), errno.EPERM),
    ("shmat", 30, 196, (), errno.EPERM),
    ("msgget", 68, 186, (), errno.EPERM),
    ("msgsnd", 69, 189, (), errno.EPERM),
    ("semget", 64, 190, (), errno.EPERM),
    ("mq_open", 240, 180, (), errno.EPERM),
    ("socket", 41, 198, (), errno.EPERM),
    ("socketpair", 53, 199, (), errno.EPERM),
    ("connect", 42, 203, (), errno.EPERM),
    ("bind", 49, 200, (), errno.EPERM),
    ("sendmsg", 46, 211, (), errno.EPERM),
    ("recvmsg", 47, 212, (), errno.EPERM),
    ("fork", 57, None, (), errno.EPERM),
    ("execve", 59, 221, (), errno.EPERM),
    ("execveat", 322, 281, (), errno.EPERM),
    ("memfd_create", 319, 279, (), errno.EPERM),
    ("io_uring_setup", 425, 425, (), errno.ENOSYS),
    ("bpf", 321, 280, (), errno.EPERM),
    ("perf_event_open", 298, 241, (), errno.EPERM),
    ("keyctl", 250, 219, (), errno.EPERM),
    ("unshare", 272, 97, (), errno.EPERM),
    ("setns", 308, 268, (), errno.EPERM),
    ("mount", 165, 40, (), errno.EPERM),
    ("open_by_handle_at", 304, 265, (), errno.EPERM),
    ("capset", 126, 91, (), errno.EPERM),
    ("setuid", 105, 146, (), errno.EPERM),
    ("personality", 135, 92, (), errno.EPERM),
    ("seccomp", 317, 277, (), errno.EPERM),
    ("a call of the future", 999, 999, (), errno.ENOSYS),
]


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_allows_what_is_listed_and_nothing_else(machine: str) -> None:
    code = filter_of(machine, PID)
    found, wanted = {}, {}
    for name, on_x86, on_arm, arguments, becomes in CALLS:
        number = on_x86 if machine == "x86_64" else on_arm
        if number is not None:
            found[name], wanted[name] = decide(code, ARCHITECTURES[machine], number, *arguments), becomes
    assert found == wanted
    assert all(jump < len(code) for _, *jumps, _ in code for jump in jumps)
    other = next(value for name, value in ARCHITECTURES.items() if name != machine)
    assert decide(code, other, 0) == KILLED
    assert decide(code, 0x40000003, 0) == KILLED  # i386
    allowed = {number for number in range(1024) if decide(code, ARCHITECTURES[machine], number) == 0}
    listed = {numbers[machine == "aarch64"] for numbers in system_calls.ALLOWED.values()}
    with_arguments = {number for _, *numbers, _, _ in CALLS for number in numbers} | {2}  # open, on x86_64
    assert allowed - with_arguments <= listed
    if machine == "x86_64":
        assert decide(code, ARCHITECTURES[machine], 0x40000000) == KILLED


def test_a_ruleset_is_no_longer_than_the_kernel_knows() -> None:
    assert [len(ruleset_of(version)) for version in (1, 3, 4, 5, 6, 7, 8)] == [8, 8, 16, 16, 24, 24, 24]
    assert ruleset_of(1) == (0x1FFF).to_bytes(8, "little")
    assert ruleset_of(7) == b"".join(value.to_bytes(8, "little") for value in (0xFFFF, 3, 3))


class OldKernel:
    """A C library on a kernel that has neither Landlock nor seccomp."""

    def syscall(self, *_: Any) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1


def test_what_a_kernel_cannot_confine_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lacks: Any = restrict_reading(OldKernel(), []), system_calls.filter_calls(OldKernel())  # type: ignore[arg-type]
    assert lacks[0] == "Landlock is not available (Function not implemented), so it can read the files of its user"
    assert lacks[1].startswith("the kernel refuses a filter for system calls (")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert "riscv64" in system_calls.filter_calls(OldKernel())  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "trainband"):
        checker_process.warn_once(lacks[0])
        checker_process.warn_once(lacks[0])
    assert [record.getMessage() for record in caplog.records] == [
        f"the process that checks update programs is less confined than it should be: {lacks[0]}"
    ]


def test_a_program_for_which_the_kernel_ended_the_checker_is_refused() -> None:
    assert "a system call that no update program needs" in checker.crashed(-signal.SIGSYS, 60.0)


CONFINED = """
import ctypes, errno, json, os, signal, sys, threading
from pathlib import Path
import jax
from trainband.ps.program.check import confinement

secret, calls, machine = Path(sys.argv[1]), json.loads(sys.argv[2]), os.uname().machine
held = os.open(secret, os.O_RDONLY)
lacks = confinement.confine(parent=0)
threads = [threading.Thread(target=lambda: None) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.argtypes = [ctypes.c_long] * 7
libc.syscall.restype = ctypes.c_long
buffer = ctypes.create_string_buffer(4096)
words = {"SECRET": ctypes.create_string_buffer(os.fsencode(secret)), "NAME": ctypes.create_string_buffer(b"user.x"),
         "BUFFER": buffer, "QUEUED": ctypes.create_string_buffer(bytes(8) + bytes([255] * 4), 128)}
values = {"HELD": held, "PARENT": os.getppid(), "ME": os.getpid(), "CWD": -100}
done = {}
for name, number, *arguments in calls:
    given = [ctypes.addressof(words[a]) if a in words else values.get(a, a) for a in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(number, *given, *[0] * (6 - len(given)))
    done[name] = 0 if result >= 0 else ctypes.get_errno()
read = {}
for path in (secret, f"/proc/self/root{secret}", f"/proc/self/fd/{held}", os.path.relpath(secret), secret.parent,
             f"/proc/{os.getppid()}/environ", f"/proc/{os.getppid()}/mem", f"/proc/{os.getppid()}/maps",
             f"/proc/{os.getppid()}/fd/0", "/etc/passwd", "/dev/mem", "/dev/shm", os.path.expanduser("~")):
    try:
        read[str(path)] = os.close(os.open(path, os.O_RDONLY))
    except OSError as exc:
        read[str(path)] = exc.errno
import scipy.linalg.cython_lapack  # what it runs on may be read
print(json.dumps([lacks, done, read]), flush=True)
if sys.argv[3] == "abort":
    os.abort()
libc.syscall(0x40000000 + 39, *[0] * 6)
print("it lives")
"""

TRIED: list[tuple[str, int | None, int | None, tuple[str | int, ...]]] = [
    ("kill", 62, 129, ("PARENT", 0)),
    ("tkill", 200, 130, ("PARENT", 0)),
    ("tgkill", 234, 131, ("PARENT", "PARENT", 0)),
    ("rt_sigqueueinfo", 129, 138, ("PARENT", 0, "QUEUED")),
    ("rt_tgsigqueueinfo", 297, 240, ("PARENT", "PARENT", 0, "QUEUED")),
    ("pidfd_open", 434, 434, ("PARENT", 0)),
    ("pidfd_send_signal", 424, 424, (0, 0, 0, 0)),
    ("F_SETOWN", 72, 25, ("HELD", 8, "PARENT")),
    ("FIOSETOWN", 16, 29, (0, 0x8901, "BUFFER")),
    ("fchmod", 91, 52, ("HELD", 0o666)),
    ("fchmodat", 268, 53, ("CWD", "SECRET", 0o666)),
    ("fchmodat2", 452, 452, ("CWD", "SECRET", 0o666, 0)),
    ("chmod", 90, None, ("SECRET", 0o666)),
    ("fchown", 93, 55, ("HELD", 0, 0)),
    ("fchownat", 260, 54, ("CWD", "SECRET", 0, 0, 0)),
    ("fsetxattr", 190, 7, ("HELD", "NAME", "BUFFER", 1, 0)),
    ("setxattr", 188, 5, ("SECRET", "NAME", "BUFFER", 1, 0)),
    ("getxattr", 191, 8, ("SECRET", "NAME", "BUFFER", 1)),
    ("utimensat", 280, 88, ("CWD", "SECRET", 0, 0)),
    ("openat to write", 257, 56, ("CWD", "SECRET", os.O_WRONLY)),
    ("unlinkat", 263, 35, ("CWD", "SECRET", 0)),
    ("linkat", 265, 37, ("CWD", "SECRET", "CWD", "NAME", 0)),
    ("truncate", 76, 45, ("SECRET", 0)),
    ("prlimit64 of the ps", 302, 261, ("PARENT", 7, 0, "BUFFER")),
    ("prlimit64 to set", 302, 261, (0, 7, "BUFFER", 0)),
    ("setrlimit", 160, 164, (7, "BUFFER")),
    ("sched_setaffinity", 203, 122, ("PARENT", 128, "BUFFER")),
    ("sched_setscheduler", 144, 119, (0, 0, "BUFFER")),
    ("setpriority", 141, 140, (0, "PARENT", 5)),
    ("shmget", 29, 194, (0, 4096, 0o600)),
    ("msgget", 68, 186, (0, 0o600)),
    ("semget", 64, 190, (0, 1, 0o600)),
    ("memfd_create", 319, 279, ("NAME", 0)),
    ("ptrace", 101, 117, (16, "PARENT", 0, 0)),
    ("process_vm_readv", 310, 270, ("PARENT", 0, 0, 0, 0, 0)),
    ("kcmp", 312, 272, ("ME", "PARENT", 2, 0, 0)),
    ("move_pages", 279, 239, ("PARENT", 0, 0, 0, 0, 0)),
    ("socket", 41, 198, (1, 1, 0)),
    ("socketpair", 53, 199, (1, 1, 0, "BUFFER")),
    ("clone of a process", 56, 220, (17,)),
    ("clone3", 435, 435, (0, 0)),
    ("execve", 59, 221, ("SECRET", 0, 0)),
    ("unshare", 272, 97, (0x10000000,)),
    ("io_uring_setup", 425, 425, (1, "BUFFER")),
    ("PR_SET_PDEATHSIG", 157, 167, (1, 0)),
    ("PR_SET_DUMPABLE", 157, 167, (4, 1)),
]


def attempt(secret: Path, end: str) -> subprocess.CompletedProcess[str]:
    column = 2 if platform.machine() == "aarch64" else 1
    calls = [(call[0], call[column], *call[3]) for call in TRIED if call[column] is not None]
    command = [sys.executable, "-c", CONFINED, str(secret), json.dumps(calls), end]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)


@ONLY_LINUX
def test_a_confined_process_reaches_no_other_and_changes_and_reads_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("kept")
    secret.chmod(0o600)
    before = secret.stat()
    done = attempt(secret, "abort")
    assert done.returncode == -signal.SIGABRT, done.stderr
    lacks, calls, read = json.loads(done.stdout)
    assert set(calls.values()) <= {errno.EPERM, errno.ENOSYS}, calls
    if "Landlock" in lacks:
        pytest.skip(f"reading is not confined: {lacks}")
    assert not lacks
    assert set(read.values()) <= {errno.EACCES, errno.ENOENT, errno.EPERM}, read
    after = secret.stat()
    assert (secret.read_text(), after.st_mode, after.st_mtime_ns, after.st_nlink) == (
        "kept",
        before.st_mode,
        before.st_mtime_ns,
        1,
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has x32 calls")
@ONLY_LINUX
def test_a_call_of_another_architecture_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    assert attempt(tmp_path / "secret", "x32").returncode == -signal.SIGSYS


def test_a_checker_may_not_read_beside_the_script() -> None:
    readable = {path.resolve() for path in confinement.readable() if str(path) != "/proc/self"}
    for private in (Path.home(), Path.cwd(), Path("/tmp"), Path("/etc"), Path("/proc")):
        assert not [path for path in readable if private == path or path in private.parents]


def test_the_environment_of_a_checker_names_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINBAND_SECRET_FILE", "/a/secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    found = checker_environment()
    assert found["XLA_FLAGS"]
    assert not {"TRAINBAND_SECRET_FILE", "AWS_SECRET_ACCESS_KEY"} & set(found)


@pytest.mark.skipif(not confinement.LIMITED_BY_PS, reason="this system sets no limits of other processes")
def test_a_ps_limits_its_checker_from_outside() -> None:
    import resource

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        confinement.limit(child.pid, 1 << 30, 2.0)
        memory, _ = resource.prlimit(child.pid, resource.RLIMIT_AS)
        seconds, _ = resource.prlimit(child.pid, resource.RLIMIT_CPU)
    finally:
        child.kill()
        child.wait()
    assert 1 << 30 <= memory < 4 << 30
    assert 5 <= seconds <= 10 + 2 * (os.cpu_count() or 1)
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        confinement.limit(child.pid, 1 << 30, 2.0)
