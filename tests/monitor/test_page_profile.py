"""The page's view of some steps in detail: recorded when somebody asks for it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.chromium import chromium
from tests.monitor.jobs import SimulatedJob
from tests.monitor.test_page_app import got, trained
from tests.monitor.test_trace import recording_of
from tests.programs import until

from trainband.errors import Unreachable
from trainband.monitor.page.app import make_app
from trainband.monitor.page.server import PageServer
from trainband.monitor.step_recordings import PageRecorder, RecorderState
from trainband.runtime.http.access import Access
from trainband.wire.messages.recording import RecordingOrder, Recordings

ORDER = {"x-trainband-order": "record"}


class FakePs:
    """Asks no ps: the recordings are there at the second look."""

    def __init__(self) -> None:
        self.order = RecordingOrder("one", 5, ("worker:0", "worker:1"))
        self.looks = 0
        self.closed = False

    def record_steps(self, steps: int) -> RecordingOrder:
        self.order = RecordingOrder("one", steps, ("worker:0", "worker:1"))
        return self.order

    def recordings(self) -> Recordings:
        self.looks += 1
        chance = random.Random(0)
        came = [recording_of(worker, chance, self.order.steps) for worker in self.order.workers[: self.looks]]
        return Recordings(self.order, tuple(came), len(came) == 2)

    def close(self) -> None:
        self.closed = True


def over(recorder: PageRecorder) -> RecorderState:
    """Its state when it waits no more."""
    until(lambda: recorder.state.state != "recording", "the end of the recording")
    return recorder.state


def test_only_the_page_orders_and_one_recording_is_made_at_a_time() -> None:
    made: list[FakePs] = []

    def connect() -> FakePs:
        made.append(FakePs())
        return made[-1]

    recorder = PageRecorder(connect, time.time)
    app = make_app(trained(SimulatedJob(workers=2, ps=2)), recorder=recorder)
    post: Callable[..., int] = lambda path, headers=None: got(app, path, headers, "POST").status_code  # noqa: E731
    assert got(app, "/api/profile").json()["state"] == "none"
    assert post("/api/profile") == 403, "as a form of another site would send it"
    assert [post(f"/api/profile?steps={steps}", ORDER) for steps in ("0", "201", "x", "-1")] == [400] * 4
    assert got(app, "/api/profile/trace.json").status_code == 404
    assert not made
    assert post("/api/profile?steps=4", ORDER) == 200
    assert post("/api/profile?steps=9", ORDER) == 200
    state = over(recorder)
    assert (state.state, state.steps, state.came, state.workers, len(made)) == ("done", 4, 2, 2, 1)
    assert made[0].closed
    events = got(app, "/api/profile/trace.json").json()["traceEvents"]
    assert sum(event["name"] == "step" for event in events) == 8
    assert got(make_app(trained(SimulatedJob(workers=1, ps=1))), "/api/profile").status_code == 404
    recorder.close()


def test_a_ps_that_does_not_answer_is_named() -> None:
    def connect() -> FakePs:
        raise Unreachable("nothing listens at 10.0.0.7:2222.")

    recorder = PageRecorder(connect, time.time)
    recorder.start(3)
    assert (over(recorder).state, recorder.state.error) == ("failed", "nothing listens at 10.0.0.7:2222.")


def test_the_view_records_and_draws() -> None:
    app = make_app(trained(SimulatedJob(workers=2, ps=2)), recorder=PageRecorder(FakePs, time.time))
    with PageServer(app, Access(), host="127.0.0.1", port=0, search=False) as server, chromium() as browser:
        page = browser.page()
        page.open(f"{server.url}#profile")
        page.wait_for("document.querySelector('.view-profile button.primary')?.disabled === false")
        page.evaluate("document.querySelector('.view-profile button.primary').click()")
        page.wait_for("document.querySelector('.lanes canvas') !== null")
        rows = "[...document.querySelectorAll('.view-profile tbody tr')].map((row) => row.cells[0].innerText)"
        assert page.evaluate(rows) == ["worker:0", "worker:1"]
        shares = page.evaluate(
            "[...document.querySelector('.view-profile tbody tr').cells].slice(2, 7).map((c) => parseInt(c.innerText))"
        )
        assert abs(sum(shares) - 100) <= 3
        drawn = "new Set(document.querySelector('canvas').getContext('2d').getImageData(0, 0, 700, 300).data).size"
        assert page.evaluate(drawn) > 10, "there is something on the canvas"
        # Pointing at the first bar reads it.
        page.evaluate(
            """(() => {
              const canvas = document.querySelector('.lanes canvas');
              const box = canvas.getBoundingClientRect();
              canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + 152, clientY: box.top + 55 }));
            })()"""
        )
        assert page.text(".readout").startswith("worker:0, steps: compute, 10.0")
        page.evaluate("document.querySelector('button[title=\"Zoom in\"]').click()")
        page.evaluate("location.hash = 'overview'")
        page.wait_for("document.querySelector('.view-overview') !== null")
        page.evaluate("location.hash = 'profile'")
        page.wait_for("document.querySelector('.lanes canvas') !== null")  # what was recorded stays
        assert page.complaints == []
