"""How much memory this process has, what may still be taken, and whom the kernel has killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trainband.errors import ResourceExhausted
from trainband.runtime.available_memory import OomKills, available_bytes, oom_kills, require_memory
from trainband.runtime.memory import (
    COST,
    EACH_S,
    PARTS,
    MemoryReader,
    ProcessMemory,
    by_part,
    parts_text,
    process_memory,
    resident_bytes,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 16000 kB\nMemAvailable:    8000 kB\n", "proc/vmstat": "pgfault 9\noom_kill 3\n"}
GROUP_2 = "sys/fs/cgroup/pods/task"
GROUP_1 = "sys/fs/cgroup/memory/pods"


def test_memory_of_this_process_and_of_what_it_started() -> None:
    before = process_memory()
    assert 0.3 * resident_bytes() < before.total < 2 * resident_bytes()
    program = "b = b'x' * 50_000_000; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert process_memory().total - before.total > 50_000_000
        child.communicate(b"\n")


def test_shared_memory_is_divided() -> None:
    import mmap

    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 8 << 20)
    before = process_memory("self").shared
    with mmap.mmap(descriptor, 8 << 20) as shared:
        np.frombuffer(shared, np.uint8)[:] = 1
        assert process_memory().shared - before == 8 << 20
        program = (
            f"import mmap, sys; m = mmap.mmap({descriptor}, {8 << 20}); m[:] = bytes({8 << 20}); "
            "print(flush=True); input()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[descriptor]
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert process_memory(str(child.pid)).shared == 4 << 20
            assert process_memory().shared - before == 8 << 20, "its own half, and its child's"
            child.communicate(b"\n")
    os.close(descriptor)


def test_a_reading_that_takes_long_is_made_seldom() -> None:
    now, cpu_s, looks, took_s = 0.0, 0.0, 0, 0.0

    def read() -> ProcessMemory:
        nonlocal looks, cpu_s
        looks, cpu_s = looks + 1, cpu_s + took_s
        return ProcessMemory(looks)

    reader = MemoryReader(read, lambda: now, lambda: cpu_s)
    assert [reader().total for _ in range(3)] == [1, 1, 1]
    now, took_s = EACH_S, 0.04
    assert reader().total == 2
    now = EACH_S + COST * took_s - 0.1
    assert reader().total == 2
    now = EACH_S + COST * took_s + 0.1
    assert reader().total == 3


def test_parts_add_up() -> None:
    parts = by_part(1000, {"params": 200, "buffers": 50})
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == 1000
    assert parts_text(parts) == "params 200 B, buffers 50 B, rest 750 B"
    assert by_part(0, {"params": 200}) == {}


def test_what_the_machine_has(tmp_path: Path) -> None:
    assert available_bytes(write(tmp_path, MACHINE)) == 8_000 << 10
    assert available_bytes(tmp_path / "elsewhere") is None
    assert available_bytes() is not None


def test_a_group_of_version_2_may_take_less(tmp_path: Path) -> None:
    write(tmp_path, {**MACHINE, "proc/self/cgroup": "0::/pods/task\n"})
    write(tmp_path / GROUP_2, {"memory.max": "max\n", "memory.current": "1\n", "memory.events": "oom_kill 5\n"})
    assert available_bytes(tmp_path) == 8_000 << 10
    outer = {"memory.max": "5000000\n", "memory.current": "4000000\n", "memory.stat": "anon 1\ninactive_file 500000\n"}
    write(tmp_path / GROUP_2 / "..", outer)
    assert available_bytes(tmp_path) == 1_500_000, "what the kernel can drop counts as free"
    assert oom_kills(tmp_path) == 5


def test_a_group_of_version_1_may_take_less(tmp_path: Path) -> None:
    write(tmp_path, {**MACHINE, "proc/self/cgroup": "4:cpu,memory:/pods\n0::/\n"})
    write(
        tmp_path / GROUP_1,
        {
            "memory.limit_in_bytes": "5000000\n",
            "memory.usage_in_bytes": "4000000\n",
            "memory.stat": "total_inactive_file 100\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
        },
    )
    assert available_bytes(tmp_path) == 1_000_100
    assert oom_kills(tmp_path) == 7


def test_each_kill_explains_one_exit(tmp_path: Path) -> None:
    kills = OomKills(write(tmp_path, MACHINE))
    assert not kills.take()
    write(tmp_path, {"proc/vmstat": "oom_kill 5\n"})
    assert [kills.take() for _ in range(3)] == [True, True, False]


def test_too_little_memory_is_said_before_it_is_taken() -> None:
    require_memory("ps:0", 100, "params", "add ps", None)
    require_memory("ps:0", 100, "params", "add ps", 100)
    text = (
        r"ps:0 needs at least 2.0 GB of memory for this model \(params\), but only 1.0 GB is available to it: add ps\."
    )
    with pytest.raises(ResourceExhausted, match=text):
        require_memory("ps:0", 2_000_000_000, "params", "add ps", 1_000_000_000)
