"""What this process holds open."""

from __future__ import annotations

import gc
import os


def opened_since(before: set[str]) -> set[str]:
    """What is open that was not; what only garbage holds does not count.

    The garbage collector, which takes long in a process that has run many tests, is asked only where there are any.
    """
    return open_descriptors() - before if open_now() - before else set()


def more_open_than(count: int) -> bool:
    """Whether more is open than this many descriptors; again without what only garbage holds."""
    return len(open_now()) > count and len(open_descriptors()) > count


def open_descriptors() -> set[str]:
    """What each open descriptor of this process is, gRPC's own polling machinery aside.

    Its threads, once an earlier test has had any, open and close such descriptors whenever they like.
    """
    gc.collect()
    return open_now()


def open_now() -> set[str]:
    """The same, with what only garbage holds: enough for what was open before."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:
            continue
        if "eventpoll" not in target and "eventfd" not in target:
            found.add(f"{name} {target}")
    return found
