"""The machine and a process's limits on it: memory, descriptors, ports, the clock."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import resource
import secrets
import socket
from pathlib import Path

from trainband.cli.doctor.finding import Finding, info, missing, ok, problem
from trainband.runtime.formatting import size
from trainband.runtime.limits import BASE_DESCRIPTORS, DESCRIPTORS_PER_PEER
from trainband.version import VERSION
from trainband.wire.shared_memory.stream import is_supported
from trainband.wire.ucx.context import SMALL_MEMLOCK

FEW_PEERS = 16


def machine() -> list[Finding]:
    """Host, system, processors, memory and the versions of Python and trainband."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here = os.cpu_count() or usable
    processors = f"{usable}" + (f" of {here} may be used" if usable < here else "") + f" ({platform.machine()})"
    return [
        info("host", socket.gethostname()),
        info("system", f"{_distribution()}, {platform.system()} {platform.release()}", kernel=platform.release()),
        info("CPUs", processors, usable=usable, total=here),
        _memory(),
        info("Python", platform.python_version()),
        info("trainband", VERSION),
    ]


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.platform(terse=True)


def _memory() -> Finding:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return missing("memory", "unknown")
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    total, available = kilobytes["MemTotal"] << 10, kilobytes.get("MemAvailable", 0) << 10
    limit = total
    with contextlib.suppress(OSError, ValueError):  # without cgroups, or "max"
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    text = f"{size(total)}, {size(available)} available"
    if limit < total:
        text += f"; this container may use {size(limit)}"
    return info("memory", text, total=total, available=available, limit=min(limit, total))


def limits(has_rdma: bool) -> list[Finding]:
    """Locked memory and open descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return [locked_memory(soft, hard, has_rdma=has_rdma), _descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE))]


def locked_memory(soft: int, hard: int, *, has_rdma: bool) -> Finding:
    """How much memory a process may lock; RDMA locks every send buffer.

    Args:
      soft: bytes; -1 for no limit.
      hard: as `soft`.
    """
    text = "no limit" if soft < 0 else size(soft)
    if not has_rdma:
        return info("locked memory", f"{text}; only RDMA needs it", soft=soft, hard=hard)
    if 0 <= soft < SMALL_MEMLOCK:
        advice = "Raise it before the tasks start: ulimit -l unlimited"
        if 0 <= hard < SMALL_MEMLOCK:
            advice += " as root, LimitMEMLOCK= of a systemd unit, or --ulimit memlock=-1 of a container"
        return problem(
            "locked memory", f"{text} (ulimit -l) is too little for RDMA", f"{advice}.", soft=soft, hard=hard
        )
    return ok("locked memory", text, soft=soft, hard=hard)


def _descriptors(soft: int, hard: int) -> Finding:
    if hard < 0:
        return ok("descriptors", "no limit", soft=soft, hard=hard)
    peers = max(0, hard - BASE_DESCRIPTORS) // DESCRIPTORS_PER_PEER
    text = f"{hard:,} (ulimit -Hn): one task can have {peers:,} peers"
    if peers >= FEW_PEERS:
        return ok("descriptors", text, soft=soft, hard=hard)
    advice = "Raise the hard limit: ulimit -n as root, LimitNOFILE=, or --ulimit nofile= of a container."
    return problem("descriptors", text, advice, stops_jobs=peers < 1, soft=soft, hard=hard)


def shared_memory() -> list[Finding]:
    """Whether streams within this machine can use shared memory."""
    name = "shared memory"
    if not is_supported():
        return [missing(name, "needs Linux; tasks on one machine use the loopback network")]
    try:
        _send_segment()
    except OSError as exc:
        advice = "Check whether a sandbox forbids memfd_create or Unix sockets; TRAINBAND_TRANSPORT=flight avoids both."
        return [problem(name, f"does not work: {exc.strerror or exc}", advice, stops_jobs=True)]
    found = [ok(name, "works between tasks of one machine")]
    with contextlib.suppress(OSError):
        volume = os.statvfs("/dev/shm")
        room = volume.f_frsize * volume.f_blocks
        found.append(info("/dev/shm", f"{size(room)}; trainband does not use it, but UCX may", size=room))
    return found


def _send_segment() -> None:
    """Sends anonymous memory through a socket in the abstract namespace, as tasks do."""
    with contextlib.ExitStack() as stack:
        listener, sender = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        listener.bind(f"\0trainband-doctor-{secrets.token_hex(8)}")
        listener.listen(1)
        sender.connect(listener.getsockname())
        receiver = stack.enter_context(listener.accept()[0])
        segment = os.memfd_create("trainband-doctor")
        stack.callback(os.close, segment)
        os.ftruncate(segment, mmap.PAGESIZE)
        socket.send_fds(sender, [b"x"], [segment])
        for descriptor in socket.recv_fds(receiver, 1, 1)[1]:
            stack.callback(os.close, descriptor)
            mmap.mmap(descriptor, mmap.PAGESIZE).close()


def ports() -> list[Finding]:
    """Whether a ps could serve here."""
    found = []
    for name, host in (("loopback port", "127.0.0.1"), ("network port", "0.0.0.0")):
        try:
            with socket.create_server((host, 0)) as server:
                socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=1.0).close()
            found.append(ok(name, f"a port of {host} opens and answers"))
        except OSError as exc:
            advice = "Check whether a sandbox or a firewall of this machine forbids it; a ps needs a port."
            found.append(
                problem(name, f"no port of {host} opens and answers: {exc.strerror or exc}", advice, stops_jobs=True)
            )
    return found


class _TimeX(ctypes.Structure):
    """Linux's `struct timex`, with room for its further fields."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("most_error_us", ctypes.c_long),
        ("error_us", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


_UNSYNCHRONISED = 0x40
"""`STA_UNSYNC`."""


def clock() -> Finding:
    """Whether this machine's clock is synchronised. Source: adjtimex(2)."""
    try:
        state = _TimeX()
        if ctypes.CDLL(None).adjtimex(ctypes.byref(state)) < 0:
            raise OSError("adjtimex")
    except (OSError, AttributeError):
        return missing("clock", "unknown whether it is synchronised")
    if state.status & _UNSYNCHRONISED and not Path("/run/systemd/timesync/synchronized").exists():
        advice = "Run chrony or systemd-timesyncd: certificates and the times in logs rely on the clock."
        return missing("clock", "not synchronised", advice, synchronised=False)
    return ok("clock", f"synchronised, to within {state.most_error_us / 1000:,.0f} ms", synchronised=True)
