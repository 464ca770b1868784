"""The application of the page: what it answers, to whom, and that it changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator, MutableMapping
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET, socket
from typing import Any

import httpx
import msgspec
import psutil
import pytest
from tests.monitor.jobs import SimulatedJob, collector_of
from tests.programs import until

from trainband.cli.status import as_text
from trainband.cluster.credentials import Credentials
from trainband.monitor.live_feed import LiveFeed
from trainband.monitor.page import stream
from trainband.monitor.page.app import make_app
from trainband.monitor.page.frames import Frames
from trainband.monitor.page.routes import STATIC
from trainband.monitor.page.server import PageServer
from trainband.monitor.page.token import token_for
from trainband.runtime.http import server as http_server
from trainband.runtime.http.access import Access
from trainband.runtime.http.asgi import Application

HERE = "http://localhost:8470"
TOKEN = "0123456789abcdef"


def trained(job: SimulatedJob, seconds: int = 3) -> LiveFeed:
    """A feed that has watched a job for so long."""
    feed = LiveFeed(job.address(0))
    collector = collector_of(job, feed)
    for _ in range(seconds):
        job.advance()
        collector.poll()
    collector.close()
    return feed


def got(app: Application, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> httpx.Response:
    """What the application answers."""

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HERE) as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(ask())


@pytest.mark.smoke
def test_it_says_what_status_says() -> None:
    job = SimulatedJob(workers=3, ps=2)
    app = make_app(trained(job))
    told = got(app, "/api/job").json()
    status = json.loads(as_text(job.ask(0)))
    for ours, theirs in (
        ("global_step", "version"),
        ("last_step", "last_version"),
        ("chief", "chief"),
        ("rule", "rule"),
    ):
        assert told[ours] == status[theirs], ours
    tasks = [row[told["workers"]["columns"].index("task")] for row in told["workers"]["rows"]]
    assert tasks == [worker["task"] for worker in status["workers"]]
    assert got(app, "/api/variables").json() == status["variables"]
    assert got(app, "/api/series").json()["global_step"][-1] == status["version"]
    assert [event["kind"] for event in got(app, "/api/timeline").json()][:2] == ["began", "joined"]
    assert got(app, "/api/timeline?after=2").json()[0]["number"] == 3
    assert got(app, "/api/timeline?after=x").status_code == 400


def test_it_is_read_only_and_loads_nothing_from_elsewhere() -> None:
    app = make_app(trained(SimulatedJob(workers=1, ps=1)))
    for path in ("/", "/static/main.js", "/static/uplot/uPlot.esm.js", "/static/style.css", "/api/job", "/nothing"):
        answer = got(app, path)
        assert answer.status_code == (404 if path == "/nothing" else 200)
        assert "script-src 'self'" in answer.headers["content-security-policy"], path
        assert "unsafe-inline" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert got(app, "/api/job", method=method).status_code == 405
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"):
        assert got(app, path).status_code == 404, path
    ours = [
        path
        for path in Path(str(STATIC)).rglob("*")
        if path.suffix in (".js", ".html", ".css") and path.parent.name != "uplot"
    ]
    assert len(ours) > 10
    for file in ours:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "http://",
            "https://",
        ):
            assert forbidden not in text, (file.name, forbidden)


def test_hostile_names_are_data() -> None:
    app = make_app(
        trained(SimulatedJob(workers=1, ps=1, names=("<script>alert(1)</script>", "a\n\nevent: full\ndata: {}")))
    )
    answer = got(app, "/api/variables")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()[0]["name"] == "<script>alert(1)</script>"
    lines = asyncio.run(first_messages(app, 1))
    assert len(lines) == 1, "a newline in a name begins no message"


def test_only_who_knows_the_token_sees_a_job_with_a_secret() -> None:
    app = make_app(trained(SimulatedJob(workers=1, ps=1)), Access(token=TOKEN))
    assert "token" in got(app, "/").text
    for path in ("/", "/api/job", "/events", "/static/main.js", "/metrics", f"/?token={TOKEN[:-1]}"):
        assert got(app, path).status_code == 401, path
    entered = got(app, f"/?token={TOKEN}")
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert "HttpOnly; SameSite=Strict" in entered.headers["set-cookie"]
    cookie = entered.headers["set-cookie"].partition(";")[0]
    assert got(app, "/api/job", {"cookie": cookie}).status_code == 200
    assert got(app, "/api/job", {"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert got(app, "/api/job", {"authorization": "Bearer 0"}).status_code == 401
    assert got(app, "/healthz").text == "ok\n"


def test_a_name_that_leads_here_is_refused() -> None:
    app = make_app(trained(SimulatedJob(workers=1, ps=1)))
    assert got(app, "/api/job", {"host": "evil.example:8470"}).status_code == 400
    elsewhere = make_app(trained(SimulatedJob(workers=1, ps=1)), Access(token=TOKEN, loopback=False))
    assert got(elsewhere, "/healthz", {"host": "node-3:8470"}).status_code == 200
    hosts = {"localhost:1": True, "127.0.0.9": True, "[::1]:80": True, "::1": True, "10.0.0.1:80": False, "": False}
    assert {host: Access().allows_host(host) for host in hosts} == hosts


def test_requests_that_make_no_sense_are_refused_and_never_fail() -> None:
    app = make_app(trained(SimulatedJob(workers=1, ps=1)))
    for path, status in (
        (f"/api/timeline?after={'9' * 5000}", 400),
        ("/api/timeline?after=%D9%A3", 400),
        ("/api/timeline?after=-1", 400),
        ("/api/timeline?after=", 400),
        (f"/static/{'a' * 5000}", 404),
        ("/static/a%00b", 404),
        ("/static/%ff%fe", 404),
        (f"/api/runs/{'a/' * 2000}", 404),
        ("/api/values?name=%ED%A0%80", 404),
        (f"/?token={'%ff' * 3000}", 200),
    ):
        assert got(app, path).status_code == status, path[:60]
    chance = random.Random(44)
    pieces = (
        "/",
        "..",
        "%00",
        "%ff",
        "%ED%A0%80",
        "?",
        "&",
        "=",
        "9" * 4400,
        "api",
        "static",
        "timeline",
        "after",
        "a",
    )
    for _ in range(300):
        path = "/" + "".join(chance.choice(pieces) for _ in range(chance.randint(1, 6)))
        assert got(app, path, {"cookie": chance.choice(pieces) * 9}).status_code < 500, path


def test_pages_of_other_sites_get_nothing() -> None:
    app = make_app(trained(SimulatedJob(workers=1, ps=1)))
    assert got(app, "/api/job", {"origin": "http://evil.example"}).status_code == 403
    assert got(app, "/api/job", {"origin": HERE}).status_code == 200


def test_the_token_is_that_of_the_job() -> None:
    one, other = Credentials(secret=b"a" * 32), Credentials(secret=b"b" * 32)
    assert token_for(one) == token_for(one) != token_for(other)
    assert len(token_for(one)) == 32
    assert token_for(Credentials()) == ""


async def messages(app: Application) -> AsyncGenerator[tuple[str, Any], None]:
    """The server-sent events, until nobody asks for more."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    left = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await queue.put(message["body"])

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/events",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    task = asyncio.ensure_future(app(scope, receive, send))
    try:
        while True:
            for block in (await asyncio.wait_for(queue.get(), 10)).decode().split("\n\n"):
                fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
                if "event" in fields:
                    yield fields["event"], json.loads(fields["data"])
    finally:
        left.set()
        await asyncio.wait_for(task, 10)


async def first_messages(app: Application, count: int) -> list[tuple[str, Any]]:
    found = []
    async with contextlib.aclosing(messages(app)) as stream_of_messages:
        async for message in stream_of_messages:
            found.append(message)
            if len(found) == count:
                break
    return found


def test_the_stream_goes_on_from_a_full_picture() -> None:
    job = SimulatedJob(workers=2, ps=1)
    feed = trained(job)
    collector = collector_of(job, feed)

    async def read() -> None:
        async with contextlib.aclosing(messages(make_app(feed))) as said:
            name, full = await anext(said)
            assert name == "full"
            assert full["job"]["global_step"] == job.version
            assert len(full["series"]["at"]) == 3
            job.presence[1] = "lost"
            job.advance()
            await asyncio.to_thread(collector.poll)
            name, events = await anext(said)
            assert (name, events[0]["kind"], events[0]["task"]) == ("events", "lost", "worker:1")
            name, now = await anext(said)
            assert (name, now["global_step"]) == ("now", job.version)
            for _ in range(5):
                job.advance()
                await asyncio.to_thread(collector.poll)
            newest = job.version
            while (await anext(said))[1]["global_step"] != newest:
                pass  # some in between may be skipped

    asyncio.run(read())
    collector.close()


def test_a_viewer_that_reads_nothing_is_cut_off_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STUCK_S", 0.05)
    feed = trained(SimulatedJob(workers=1, ps=1))
    app = make_app(feed)

    async def stuck() -> None:
        async def receive() -> MutableMapping[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/events",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        deaf = asyncio.ensure_future(app(scope, receive, send))
        assert (await first_messages(app, 1))[0][0] == "full"
        await asyncio.wait_for(deaf, 10)

    asyncio.run(stuck())


def test_the_connection_of_a_viewer_that_reads_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STUCK_S", 0.05)
    monkeypatch.setattr(http_server, "UNREAD_S", 1.0)
    feed = trained(SimulatedJob(workers=1000, ps=1))

    def connections() -> int:
        """Of the server: it waits for no more than what the kernel sends yet."""
        found = psutil.Process().net_connections("tcp")
        return sum(one.laddr.port == page.port and one.status == psutil.CONN_ESTABLISHED for one in found)

    with PageServer(make_app(feed), Access(), host="127.0.0.1", port=0, search=False) as page, socket() as viewer:
        viewer.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
        viewer.connect(("127.0.0.1", page.port))
        viewer.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: connections() == 1, "the connection", 10.0)
        until(lambda: feed.publish(feed.snapshot) == () and connections() == 0, "its end", 20.0)


def test_viewers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_VIEWERS", 0)
    answer = got(make_app(trained(SimulatedJob(workers=1, ps=1))), "/events")
    assert answer.status_code == 503
    assert "viewers" in answer.text


def test_a_frame_is_made_once_for_all_and_is_small() -> None:
    job = SimulatedJob(workers=1000, ps=32)
    feed = trained(job, 2)
    frames = Frames(feed)
    assert frames.now() is frames.now()
    _, body = frames.now()
    assert len(body) < 270_000, "a second of 1,000 workers"
    assert msgspec.json.decode(body)["workers"]["rows"][999][0] == "worker:999"
