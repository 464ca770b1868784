"""Limits of descriptors and threads: errors that name them, before anything hangs or aborts."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from threading import Thread

import pytest

from trainband.errors import ResourceExhausted
from trainband.runtime import SYSTEM
from trainband.runtime.limits import start_thread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits of other systems mean other things")


def run(program: str) -> str:
    """What a program prints that sets limits for itself, and so has a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    out = run("""
        import resource
        from trainband.runtime import SYSTEM
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 200))
        SYSTEM.require_room("ps:0", 8, "for 8 workers")
        print(resource.getrlimit(resource.RLIMIT_NOFILE))
    """)
    assert out == "(200, 200)\n"


def test_a_ps_says_how_many_descriptors_it_lacks_and_for_whom() -> None:
    out = run("""
        import resource
        from trainband.errors import ResourceExhausted
        from trainband.ps.server import Server
        from trainband.wire.memory.transport import MemoryTransport
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        cluster = {"ps": ["ps0:1"], "worker": [f"worker{i}:1" for i in range(4)]}
        try:
            Server(cluster, job_name="ps", task_index=0, transport=MemoryTransport())
        except ResourceExhausted as exc:
            print(exc)
    """)
    assert out.startswith(
        "ps:0 needs about 64 open descriptors for 4 workers, but may have at most 40; before it starts, "
    )


def test_the_launcher_says_so_before_it_starts_anything() -> None:
    out = run("""
        import resource
        from trainband.errors import ResourceExhausted
        from trainband.launch import LocalCluster
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        try:
            with LocalCluster(["none.py"], environ={}, workers=7):
                pass
        except ResourceExhausted as exc:
            print(exc)
    """)
    assert out.startswith("the launcher needs about 80 open descriptors for 8 tasks, but may have at most 40; ")


def test_threads_that_cannot_be_made_are_named() -> None:
    out = run("""
        import re, resource
        from pathlib import Path
        from trainband.errors import ResourceExhausted
        from trainband.runtime import SYSTEM
        have = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))
        resource.setrlimit(resource.RLIMIT_AS, (have + (100 << 20),) * 2)
        try:
            SYSTEM.require_room("worker:3", 64, "for 64 ps")
        except ResourceExhausted as exc:
            print(exc)
    """)
    assert out.startswith("worker:3 needs about 144 threads for 64 ps, but can have only ")


def refuse(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_be_started_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading._start_joinable_thread", refuse, raising=False)
    monkeypatch.setattr("threading._start_new_thread", refuse, raising=False)
    for start in (SYSTEM.thread(lambda: None, "a").start, lambda: start_thread(Thread(name="b"))):
        with pytest.raises(ResourceExhausted, match=r"the thread \w cannot be started .*ulimit -u"):
            start()
    with pytest.raises(ResourceExhausted, match="the thread trainband-send cannot be started"):
        SYSTEM.run_all([lambda: None], "trainband-send")
