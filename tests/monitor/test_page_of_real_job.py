"""The page in real Chromium, watching real processes: what they do to it when they die and when they come back."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.chromium import Page, chromium
from tests.programs import Program, Programs, until
from tests.programs import ports as ports
from tests.programs import programs as programs

from trainband.cli.main import main
from trainband.launch import ReservedPorts

GONE = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
"""What a browser says by itself of a server that has died."""
STEP = "Number(document.querySelector('[data-tile=step] .figure').innerText.replaceAll(',', ''))"


class Watched:
    """A job of two ps, which are each other's standbys, and two workers, and `trainband dashboard` with its page."""

    page: Page

    def __init__(self, programs: Programs, ports: tuple[str, ...], port: int) -> None:
        self.programs = programs
        self.ps = ports[:2]
        self._workers = ports[2:4]
        self._port = port
        self.url = ""
        """Of the page, with its token."""
        self.job: dict[str, Program] = {}

    def start(self) -> None:
        """The job, at the same addresses each time."""
        self.job = self.programs.cluster("--standbys=1", "--pause_s=0.02", ps=self.ps, workers=self._workers)

    def show(self, ps: int) -> Program:
        """The page, at the same port each time, by the address of one ps; it waits for the job to begin."""
        dashboard = self.programs.trainband("dashboard", self.ps[ps], f"--port={self._port}", "--wait")
        self.url = dashboard.wait_for(r"the page is at (\S+)")[1]
        return dashboard

    def end(self) -> None:
        """Kills all tasks."""
        for task in self.job.values():
            task.end()

    def state(self, said: str) -> None:
        """Waits until the page says this of the job."""
        self.page.wait_for(f"document.getElementById('state')?.innerText === '{said}'")

    def is_up_to_date(self, status: dict[str, Any]) -> None:
        """What `trainband status` has just said, the page says too; and on it goes."""
        self.page.wait_for(f"{STEP} > {status['version']}")

    def events(self) -> str:
        """The text of the timeline."""
        self.page.evaluate("location.hash = 'timeline'")
        self.page.wait_for("document.querySelector('.view-timeline .event') !== null")
        text = self.page.text(".events")
        self.page.evaluate("location.hash = 'overview'")
        self.page.wait_for("document.querySelector('.view-overview') !== null")
        return text


@pytest.fixture
def watched(programs: Programs, ports: tuple[str, ...]) -> Iterator[Watched]:
    """They start while the browser does."""
    with ReservedPorts(1) as reserved:
        port = int(reserved.addresses[0].rpartition(":")[2])
        made = Watched(programs, ports, port)
        made.start()
        made.show(0)
        with chromium() as browser:
            made.page = browser.page()
            made.page.resize(1280, 860)
            made.page.open(made.url)
            made.job["worker:1"].wait_for("training")
            made.state("running")
            yield made
            assert [one for one in made.page.complaints if not any(reason in one for reason in GONE)] == []
            own = made.url.partition("?")[0]
            assert all(address.startswith(own) for address in made.page.requests), made.page.requests
        for each in programs.started:
            each.end()


def status_of(address: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `trainband status --json` says."""
    with suppress(SystemExit):
        main(["status", address, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def traced_tasks(address: str, path: Path) -> set[str]:
    """The tasks in what `trainband profile` writes."""
    with suppress(SystemExit):
        main(["profile", address, "--steps", "2", "--output", str(path)])
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {event["args"]["name"] for event in events if event["name"] == "process_name"}


def test_the_page_outlives_whatever_dies(watched: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, job = watched.page, watched.job
    status = status_of(watched.ps[1], capsys)
    watched.is_up_to_date(status)
    page.wait_for("document.querySelector('[data-tile=workers] .figure').innerText === '2'")
    assert page.text("[data-tile=ps] .figure") == str(len(status["ps_addresses"])) == "2"
    assert f"chief {status['chief']}" in page.text("[data-tile=workers]")
    assert page.text(".alerts") == ""
    everybody = {"worker:0", "worker:1", "network", "ps:0", "ps:1"}
    assert traced_tasks(watched.ps[1], tmp_path / "trace.json.gz") == everybody
    capsys.readouterr()

    os.kill(job["ps:0"].pid, signal.SIGKILL)  # the one by whose address the page was opened
    page.wait_for(f"document.querySelector('.alerts').innerText.includes('ps:0 at {watched.ps[0]} has not answered')")
    until(lambda: "Shard 0 moved from ps:0 to ps:1" in watched.events(), "the failover")
    assert "ps:0 no longer answers." in watched.events()
    assert "Shard 0 has no standby: if ps:1 dies, its values are lost." in page.text(".alerts")
    watched.is_up_to_date(status_of(watched.ps[1], capsys))

    dashboard = watched.programs.started[-1]
    dashboard.interrupt()
    assert dashboard.wait() == 0
    page.wait_for("document.getElementById('connection').innerText.includes('has not answered since')")
    assert page.evaluate(STEP) > 0, "what was known stays"
    watched.show(1)
    page.wait_for("document.getElementById('connection').hidden")
    watched.is_up_to_date(status_of(watched.ps[1], capsys))

    watched.end()
    watched.state("no answer")
    assert "No parameter server has answered for" in page.text(".alerts")
    assert page.evaluate(STEP) > status["version"], "what was known stays"
    assert page.evaluate("document.querySelectorAll('.chart canvas').length") == 2, "the curves stay"


@pytest.mark.slow
def test_the_page_goes_on_with_a_job_that_is_started_again(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    watched.end()
    watched.state("no answer")
    watched.start()
    watched.job["worker:1"].wait_for("training")
    watched.state("running")
    watched.is_up_to_date(status_of(watched.ps[0], capsys))
    events = watched.events()
    assert "No ps of the job answers:" in events
    assert "The job answers again" in events
    assert "ps:0 was restarted." in events
    assert "ps:1 was restarted." in events
