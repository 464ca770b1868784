"""`trainband top`: its screen, and what keys do."""

from __future__ import annotations

import pytest
from rich.console import Console
from tests.monitor.jobs import SimulatedJob, collector_of

from trainband.cli.top import keys_in
from trainband.monitor.live_feed import LiveFeed
from trainband.monitor.terminal import View, pressed, screen, sorted_workers, sparkline


@pytest.fixture(scope="module")
def feed() -> LiveFeed:
    """Of a job of 100 workers, one of which is stuck."""
    job = SimulatedJob(workers=100, ps=3, stuck={50}, names=("\x1b[2Jname",))
    feed = LiveFeed(job.address(0))
    collector = collector_of(job, feed)
    for _ in range(5):
        job.advance()
        collector.poll()
    collector.close()
    return feed


def drawn(feed: LiveFeed, view: View, width: int = 100, height: int = 30) -> list[str]:
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen(feed, view, width, height).picture)
    return capture.get().splitlines()


@pytest.mark.smoke
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60)])
def test_a_screen_fits_and_has_the_figures(feed: LiveFeed, width: int, height: int) -> None:
    for tab in ("workers", "servers", "events"):
        lines = drawn(feed, View(tab=tab), width, height)
        assert len(lines) == height
        assert max(map(len, lines)) <= width
        text = "\n".join(lines)
        assert f"{feed.snapshot.global_step:,}/100,000" in text
        assert "worker:50 is alive but has pushed nothing for 21 s" in text
    workers = "\n".join(drawn(feed, View(), width, height))
    assert "worker:0 ★" in workers
    assert ("2.1 GB + 41.3 GB" in workers, "NVIDIA H100 80GB HBM3" in workers) == (width > 105, width > 123)


def test_keys_move_sort_filter_and_end(feed: LiveFeed) -> None:
    view, page = View(), 20

    def press(*keys: str) -> View:
        nonlocal view
        for key in keys:
            view = pressed(view, key, page=page, rows=100)
        return view

    assert press("down", "down", "pagedown").top == 22
    assert press("end").top == 80
    assert press("pagedown").top == 80
    assert press("home", "up").top == 0
    assert press("right").sort == "steps/s"
    assert sorted_workers(feed.snapshot, view)[-1].task == "worker:50"
    press("r")
    assert sorted_workers(feed.snapshot, view)[0].task == "worker:50"
    press("/", *"stuck", "enter")
    assert [worker.task for worker in sorted_workers(feed.snapshot, view)] == ["worker:50"]
    assert press("q").over
    view = View(typing=True)
    assert not press("q").over, "it is a letter of the filter"


def test_escape_sequences_are_keys() -> None:
    assert list(keys_in("\x1b[Aq\x1b[5~\t\x1bOB/\x1b[15~x\x1b")) == [
        "up",
        "q",
        "pageup",
        "tab",
        "down",
        "/",
        "x",
        "escape",
    ]


def test_a_sparkline_ends_with_the_newest() -> None:
    assert sparkline([0.0, 1.0, 2.0], 5) == "  ▁▄█"
    assert sparkline([9.0, 1.0, 2.0], 2) == "▄█"
    assert sparkline([], 3) == "   "
