"""What all tests share: repeatable examples, and a watch over threads that are left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples every time: a failure is the change's, never the dice's. No deadline: the first call compiles.
settings.register_profile("trainband", derandomize=True, database=None, deadline=None, print_blob=False)
settings.load_profile("trainband")


def our_threads() -> set[threading.Thread]:
    """Threads that Python started; gRPC's own show up as dummies and stay for as long as gRPC likes."""
    return {
        thread
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)  # noqa: SLF001 - there is no public way
    }


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = our_threads()
    yield
    deadline = time.monotonic() + 20.0
    while (left := our_threads() - before) and time.monotonic() < deadline:
        next(iter(left)).join(0.05)
    if left:
        pytest.fail(f"threads are left: {sorted(thread.name for thread in left)}")
