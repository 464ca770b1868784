"""The page in real Chromium, watching real processes: what they do to it when they die and when they come back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.chromium import Page, chromium
from tests.programs import Program, Programs, until
from tests.programs import ports as ports
from tests.programs import programs as programs

from trainband.cli.main import main
from trainband.launch import ReservedPorts

FRESH_S = 2.0
"""What the page shows is never older."""
PACE = "--pause_s=0.02"


@pytest.fixture
def page() -> Iterator[Page]:
    """Of a browser of its own."""
    with chromium() as browser:
        made = browser.page()
        made.resize(1280, 860)
        yield made


def step(page: Page) -> int:
    return int(page.text("[data-tile=step] .figure").replace(",", "") or 0)


def text_of_events(page: Page) -> str:
    page.evaluate("location.hash = 'timeline'")
    page.wait_for("document.querySelector('.view-timeline') !== null")
    text = page.text(".events")
    page.evaluate("location.hash = 'overview'")
    page.wait_for("document.querySelector('.view-overview') !== null")
    return text


def served(programs: Programs, address: str, port: int) -> Program:
    """`trainband dashboard`, which waits for the job to begin."""
    return programs.trainband("dashboard", address, f"--port={port}", "--wait")


def test_the_page_outlives_whatever_dies(
    programs: Programs, ports: tuple[str, ...], page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    ps, workers = ports[:2], ports[2:4]

    def status() -> dict[str, Any]:
        with suppress(SystemExit):
            main(["status", ps[1], "--json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    def keeps_up() -> None:
        """What `trainband status` says now, the page says in time; and on it goes."""
        for _ in range(2):
            version = status()["version"]
            said = "Number(document.querySelector('[data-tile=step] .figure').innerText.replaceAll(',', ''))"
            page.wait_for(f"{said} > {version}", FRESH_S)

    with ReservedPorts(1) as reserved:
        port = int(reserved.addresses[0].rpartition(":")[2])
        url = f"http://127.0.0.1:{port}/"
        job = programs.cluster("--standbys=1", PACE, ps=ps, workers=workers)
        dashboard = served(programs, ps[0], port)
        dashboard.wait_for("the page is at")
        page.open(url)
        job["worker:1"].wait_for("training")
        page.wait_for("document.getElementById('state')?.innerText === 'running'")

        keeps_up()
        told = status()
        page.wait_for("document.querySelector('[data-tile=workers] .figure').innerText === '2'", FRESH_S)
        assert page.text("[data-tile=ps] .figure") == str(len(told["ps_addresses"])) == "2"
        assert f"chief {told['chief']}" in page.text("[data-tile=workers]")
        assert page.text(".alerts") == ""

        os.kill(job["ps:0"].pid, signal.SIGKILL)
        page.wait_for(f"document.querySelector('.alerts').innerText.includes('ps:0 at {ps[0]} has not answered')")
        until(lambda: "Shard 0 moved from ps:0 to ps:1" in text_of_events(page), "the failover", 10.0)
        assert "ps:0 does not answer any more." in text_of_events(page)
        assert "Shard 0 has no standby: if ps:1 dies, its values are lost." in page.text(".alerts")
        keeps_up()

        dashboard.interrupt()
        assert dashboard.wait() == 0
        page.wait_for("document.getElementById('connection').innerText.includes('has not answered since')")
        assert step(page) > 0, "what was known stays"
        # By the address of the ps that is left: the job's other addresses are learnt from it.
        served(programs, ps[1], port).wait_for("the page is at")
        page.wait_for("document.getElementById('connection').hidden")
        keeps_up()

        for task in job.values():
            task.end()
        page.wait_for("document.getElementById('state').innerText === 'no answer'")
        assert "No parameter server has answered for" in page.text(".alerts")
        reached = step(page)
        assert reached > 0
        assert page.evaluate("document.querySelectorAll('.chart canvas').length") == 2, "the curves stay"

        job = programs.cluster("--standbys=1", PACE, ps=ps, workers=workers)
        job["worker:1"].wait_for("training")
        page.wait_for("document.getElementById('state').innerText === 'running'")
        keeps_up()
        events = text_of_events(page)
        assert "No ps of the job answers any more" in events
        assert "The job answers again" in events
        assert "ps:1 was restarted." in events

        refused = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
        assert [one for one in page.complaints if not any(reason in one for reason in refused)] == []
        assert all(address.startswith(url) for address in page.requests), page.requests
    for task in job.values():
        task.end()
    for each in programs.started:
        each.end()
