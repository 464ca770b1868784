"""What the tests' own check finds that a test has left behind."""

from __future__ import annotations

import asyncio
import threading

from tests import left_behind


def test_the_sockets_of_an_event_loop_are_found_and_where_it_was_made() -> None:
    before = left_behind.open_now()
    loop = asyncio.new_event_loop()
    left = left_behind.since(before, within_s=0.0)
    loop.close()
    assert len(left) == 2
    assert all("test_left_behind.py" in one for one in left)
    assert not left_behind.since(before, within_s=0.0)


def test_a_thread_is_found() -> None:
    before, ends = left_behind.open_now(), threading.Event()
    thread = threading.Thread(target=ends.wait, name="forgotten")
    thread.start()
    assert left_behind.since(before, within_s=0.0) == ["thread forgotten"]
    ends.set()
    assert not left_behind.since(before, within_s=20.0)
    thread.join()
