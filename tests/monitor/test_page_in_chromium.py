"""The page in real headless Chromium, watching a job that exists only in what its ps answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
from tests.chromium import Browser, Page, chromium
from tests.monitor.jobs import SimulatedJob, collector_of

from trainband.launch import ReservedPorts
from trainband.monitor.live_feed import LiveFeed
from trainband.monitor.page.app import make_app
from trainband.monitor.page.server import PageServer
from trainband.runtime.http.access import Access

SCRIPT = "<script>document.title='taken'</script>"
VIEWS = ("overview", "curves", "workers", "servers", "variables", "timeline", "profile", "checkpoints", "configuration")


class Shown:
    """A simulated job and the server of its page, which can be stopped and started again."""

    def __init__(self, job: SimulatedJob, port: int = 0) -> None:
        self.job = job
        self.feed = LiveFeed(job.address(0))
        self.collector = collector_of(job, self.feed)
        self.port = port
        self._stack = ExitStack()

    def train(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.job.advance()
            self.collector.poll()

    def start(self) -> str:
        server = PageServer(make_app(self.feed), Access(), host="127.0.0.1", port=self.port, search=False)
        self._stack.enter_context(server)
        self.port = server.port
        return server.url

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Started once: that takes a second."""
    with chromium() as one:
        yield one


@pytest.fixture
def shown() -> Iterator[Shown]:
    """A job of 4 workers and 3 ps, whose page is served."""
    with ReservedPorts(1) as ports:
        port = int(ports.addresses[0].rpartition(":")[2])
    one = Shown(SimulatedJob(workers=4, ps=3, names=(SCRIPT, "dense/kernel")), port)
    one.train(5)
    yield one
    one.stop()
    one.collector.close()


def opened(browser: Browser, url: str) -> Page:
    page = browser.page()
    page.resize(1280, 860)
    page.open(url)
    page.wait_for("document.body?.dataset.ready === 'yes'")
    return page


def view(page: Page, name: str) -> None:
    page.evaluate(f"location.hash = '{name}'")
    page.wait_for(f"document.querySelector('.view-{name}') !== null")


def tile(page: Page, name: str) -> str:
    return page.text(f"[data-tile={name}] .figure")


def column(page: Page, title: str) -> list[str]:
    """The texts of a column of the first table."""
    found: list[str] = page.evaluate(
        f"""(() => {{
          const table = document.querySelector('table');
          const place = [...table.tHead.rows[0].cells].findIndex((cell) => cell.innerText.trim().startsWith('{title}'));
          const rows = [...table.tBodies[0].rows].filter((row) => !row.classList.contains('spacer'));
          return rows.map((row) => row.cells[place].innerText.trim());
        }})()"""
    )
    return found


def test_the_page_shows_the_job_and_keeps_up(browser: Browser, shown: Shown) -> None:
    url, job = shown.start(), shown.job
    page = opened(browser, url)
    assert tile(page, "step") == f"{job.version:,}"
    assert tile(page, "workers") == "4"
    for _ in range(3):
        shown.train()
        page.wait_for(f"document.querySelector('[data-tile=step] .figure').innerText === '{job.version:,}'")

    job.presence[2] = "lost"
    job.silent.add(1)
    shown.train()
    page.wait_for("document.querySelectorAll('.alert.error').length === 2")
    assert "ps:1" in page.text(".alerts")
    job.held_by[1] = (2, 2)
    shown.train()
    view(page, "workers")
    assert column(page, "Worker") == ["worker:0 ★", "worker:1", "worker:2", "worker:3"]
    assert column(page, "State") == ["live", "live", "lost", "live"]
    view(page, "servers")
    page.wait_for("document.querySelector('.chip.primary') !== null")
    assert column(page, "State") == ["up", "silent", "up"]
    assert "1 primary, term 2" in column(page, "Shards")[2]
    view(page, "variables")
    assert column(page, "Name") == [SCRIPT, "dense/kernel"]
    view(page, "timeline")
    assert "Shard 1 moved from ps:1 to ps:2, in term 2." in page.text(".events")
    assert page.evaluate("document.querySelectorAll('.picture rect').length") >= 2
    for name in VIEWS:
        view(page, name)
    job.version = job.last_step
    shown.train()
    page.wait_for("document.getElementById('state').innerText === 'ended'")
    view(page, "curves")
    assert page.evaluate("document.querySelectorAll('.chart canvas').length") >= 5, "the curves stay"
    assert page.complaints == []
    assert page.evaluate("document.title") != "taken"
    assert all(address.startswith(url) for address in page.requests), page.requests


def test_the_page_outlives_its_server(browser: Browser, shown: Shown) -> None:
    page = opened(browser, shown.start())
    shown.stop()
    page.wait_for("!document.getElementById('connection').hidden")
    assert "has not answered since" in page.text("#connection")
    assert tile(page, "step") == f"{shown.job.version:,}", "what was known stays"
    shown.train(3)
    shown.start()
    page.wait_for("document.getElementById('connection').hidden")
    page.wait_for(f"document.querySelector('[data-tile=step] .figure').innerText === '{shown.job.version:,}'")
    assert [text for text in page.complaints if "ERR_CONNECTION_REFUSED" not in text and "ERR_IN" not in text] == []


def test_a_page_that_opens_with_a_table_shows_what_each_task_uses(browser: Browser, shown: Shown) -> None:
    page = opened(browser, f"{shown.start()}#workers")
    assert column(page, "Time") == [""] * 4, "it is drawn"
    assert column(page, "Memory") == ["2.1 GB"] * 4
    assert column(page, "Device memory")[:2] == ["41.3 GB of 63.7 GB", "41.4 GB of 63.7 GB"]
    assert "Share" not in page.text("thead"), "the rule does not divide the examples"
    view(page, "servers")
    assert column(page, "Memory") == ["760.0 MB"] * 3
    assert page.evaluate("document.querySelectorAll('table')[2].innerText").split()[:8] == (
        "Task Whole Params State Gradients Versions Buffers Rest".split()
    )
    page.evaluate("document.querySelector('table').remove()")
    assert column(page, "Variables") == ["1", "2", "1"]
    assert column(page, "Size") == ["4.7 MB", "9.4 MB", "4.7 MB"]
    view(page, "configuration")
    assert "NVIDIA H100 80GB HBM3 (4)" in page.text(".view")
    assert page.complaints == []


def busy_s(page: Page) -> float:
    """The processor time that the page's main thread has taken, which other load of the machine does not lengthen."""
    found: float = next(
        one["value"] for one in page.call("Performance.getMetrics")["metrics"] if one["name"] == "TaskDuration"
    )
    return found


def test_1000_workers_scroll_and_filter(browser: Browser) -> None:
    shown = Shown(SimulatedJob(workers=1000, ps=32))
    shown.train(2)
    try:
        page = browser.page()
        page.resize(1280, 860)
        page.call("Performance.enable", timeDomain="threadTicks")
        page.open(shown.start())
        page.wait_for("document.body?.dataset.ready === 'yes'")
        assert busy_s(page) < 0.5, "0.11 s was measured"
        view(page, "workers")
        before = busy_s(page)
        page.evaluate(
            """new Promise((done) => {
              let frames = 0;
              const scroll = () => {
                document.querySelector('.table').scrollTop += 120;
                if (++frames < 30) requestAnimationFrame(scroll);
                else done(true);
              };
              requestAnimationFrame(scroll);
            })"""
        )
        assert (busy_s(page) - before) / 30 < 0.05, "5 ms a frame were measured"
        spent: Any = page.evaluate(
            """(async () => {
              const table = document.querySelector('.table');
              const seen = [];
              const began = performance.now();
              for (let place = 0; place <= 20; place += 1) {
                table.scrollTop = (table.scrollHeight - table.clientHeight) * place / 20;
                table.dispatchEvent(new Event('scroll'));
                seen.push(Number(table.querySelector('tbody th').innerText.split(/[: ]/)[1]));
              }
              const last = [...table.querySelectorAll('tbody th')].at(-1).innerText;
              return {spent: performance.now() - began, seen, last};
            })()"""
        )
        assert all(one < other for one, other in pairwise(spent["seen"])), spent
        assert spent["last"] == "worker:999"
        assert page.evaluate("document.querySelectorAll('tbody tr').length") < 100, "only what is seen is drawn"
        page.evaluate("document.querySelector('input[type=search]').focus()")
        for key in "999":
            page.press(key)
        assert column(page, "Worker") == ["worker:999"]
        page.press("Escape")
        page.press("4")
        page.wait_for("document.querySelector('.view-servers') !== null")
        page.wait_for("document.querySelector('table').getAttribute('aria-rowcount') === '33'")
        assert page.complaints == []
    finally:
        shown.stop()
        shown.collector.close()


def test_a_phone_needs_no_scrolling_to_the_side(browser: Browser, shown: Shown) -> None:
    page = browser.page()
    page.resize(360, 740, dark=True, phone=True)
    page.open(shown.start())
    page.wait_for("document.body?.dataset.ready === 'yes'")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(16, 20, 27)", "dark"
    for name in VIEWS:
        view(page, name)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


# WCAG 2.1, 1.4.3: a text differs from what is behind it by a ratio of 4.5 to 1.
FAINT = """(() => {
  const parts = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const clear = (colour) => parts(colour)[3] === 0;
  const linear = (part) => (part <= 0.04045 * 255 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const bright = (colour) => {
    const [red, green, blue] = parts(colour).map(linear);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const { backgroundColor } = getComputedStyle(one);
      if (!clear(backgroundColor)) return backgroundColor;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest(':disabled, noscript')) continue;
    const { color, fill } = getComputedStyle(element);
    const ink = element.closest('svg') ? fill : color;
    const [low, high] = [bright(ink), bright(behind(element))].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (!(ratio >= 4.5)) found.push([texts.currentNode.data, ink, behind(element), ratio]);
  }
  return found;
})()"""
CONTROLS = {"button", "link", "textbox", "searchbox", "combobox", "checkbox", "slider", "progressbar", "img", "table"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_has_a_name_and_can_be_read(browser: Browser, shown: Shown, dark: bool) -> None:
    job = shown.job
    job.presence[2], job.presence[3] = "lost", "failed"
    job.stuck.add(1)
    job.silent.add(1)
    shown.train(2)
    page = browser.page()
    page.resize(1280, 860, dark=dark)
    page.open(shown.start())
    page.wait_for("document.body?.dataset.ready === 'yes'")
    for name in VIEWS:
        view(page, name)
        assert page.evaluate(FAINT) == [], name
        tree = page.call("Accessibility.getFullAXTree")["nodes"]
        found = [one for one in tree if one.get("role", {}).get("value") in CONTROLS and not one["ignored"]]
        assert len(found) > len(VIEWS), "the links to all views, at least"
        assert [one for one in found if not one.get("name", {}).get("value")] == [], name
        headings = [one for one in tree if one.get("role", {}).get("value") == "heading"]
        assert len(headings) >= 2, name
    assert page.complaints == []
