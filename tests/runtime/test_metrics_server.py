"""The server of metrics: what it answers, and what clients that mean ill or hang cannot do."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.programs import until

from trainband.errors import AddressInUse, YourError
from trainband.runtime.exposition import CONTENT_TYPE
from trainband.runtime.metrics_server import FRESH_S, MetricsServer

WAIT_S = 20.0


@contextmanager
def serving(render: Callable[[], str], **options: Any) -> Iterator[MetricsServer]:
    """A server on a free port of this machine."""
    server = MetricsServer(render, host="127.0.0.1", port=0, **options)
    try:
        yield server
    finally:
        server.close()


def get(url: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, type and body."""
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.headers.get("Content-Type", ""), exc.read().decode()


def connect(server: MetricsServer) -> socket.socket:
    """A connection to it."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)


def test_what_it_answers() -> None:
    with serving(lambda: "up 1\n") as server:
        assert server.url == f"http://127.0.0.1:{server.port}/metrics"
        assert get(server.url) == (200, CONTENT_TYPE, "up 1\n")
        assert get(f"{server.url}?x=1")[0] == 200
        assert get(server.url, "HEAD") == (200, CONTENT_TYPE, "")
        assert get(server.url.removesuffix("metrics"))[2] == "the metrics are at /metrics\n"
        assert get(f"{server.url}/../secret")[0] == 404
        assert get(server.url, "POST")[0] == 501


def test_a_page_is_made_once_for_all_who_ask_at_the_same_time() -> None:
    made = iter(range(10))
    now = [100.0]
    with serving(lambda: f"up {next(made)}\n", clock=lambda: now[0]) as server:
        assert [get(server.url)[2] for _ in range(3)] == ["up 0\n"] * 3
        now[0] += FRESH_S * 1.01
        assert get(server.url)[2] == "up 1\n"


def test_a_page_that_cannot_be_made_is_an_error_there_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def render() -> str:
        raise RuntimeError("no figures")

    with serving(render) as server:
        assert get(server.url)[0] == 500
        assert get(server.url)[0] == 500
    assert "no figures" in caplog.text


def test_a_client_that_never_reads_blocks_nobody_and_loses_its_place() -> None:
    page = "up 1\n" * 4_000_000  # more than a socket holds
    with serving(lambda: page) as server, connect(server) as idle:
        idle.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert len(get(server.url)[2]) == len(page)
    with serving(lambda: page, deadline_s=1.0, requests=1) as server, connect(server) as idle:
        idle.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert idle.recv(1)
        until(lambda: get(server.url, "HEAD")[0] == 200, "a free place")
    with serving(lambda: page, deadline_s=1.0) as server, connect(server) as silent, connect(server) as slow:
        slow.sendall(b"GET /metr")
        assert silent.recv(1) == b""  # its time is over
        assert slow.recv(1) == b""


def test_more_requests_than_places_are_turned_away_at_once() -> None:
    begun, go = threading.Event(), threading.Event()

    def render() -> str:
        begun.set()
        go.wait(WAIT_S)
        return "up 1\n"

    with serving(render, requests=1) as server:
        try:
            with connect(server) as first:
                first.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                assert begun.wait(WAIT_S)
                with connect(server) as second:
                    assert second.recv(100).startswith(b"HTTP/1.0 503 ")
                go.set()
                assert first.recv(100).startswith(b"HTTP/1.0 200 ")
        finally:
            go.set()


def test_silent_clients_keep_nobody_out() -> None:
    with serving(lambda: "up 1\n", requests=4) as server, ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(10)]
        assert get(server.url)[0] == 200
        assert silent[0].recv(1) == b""


def test_a_site_whose_name_leads_here_gets_nothing() -> None:
    with serving(lambda: "up 1\n") as server:
        for header, status in (
            (b"Host: localhost\r\nHost: evil.example", 400),
            (b"Host: evil.example", 400),
            (b"Host: localhost\r\nOrigin: http://evil.example", 403),
            (b"Host: localhost", 200),
        ):
            with connect(server) as one:
                one.sendall(b"GET /metrics HTTP/1.1\r\n" + header + b"\r\n\r\n")
                assert one.recv(100).startswith(b"HTTP/1.0 %d " % status), header


def test_a_request_without_end_is_cut_off() -> None:
    with serving(lambda: "up 1\n") as server, connect(server) as endless:
        headers = b"X-Long: 1\r\n" * 1_000_000
        with pytest.raises(ConnectionError):
            endless.sendall(b"GET /metrics HTTP/1.0\r\n" + headers)
        assert get(server.url)[0] == 200


def test_a_port_that_is_taken_and_an_address_that_is_not_here() -> None:
    with (
        serving(lambda: "") as server,
        pytest.raises(AddressInUse, match=rf"127.0.0.1:{server.port}: another process listens there. Choose"),
    ):
        MetricsServer(lambda: "", host="127.0.0.1", port=server.port)
    with pytest.raises(YourError, match=r"metrics cannot be served at 192.0.2.1:0: .*--metrics-host"):
        MetricsServer(lambda: "", host="192.0.2.1", port=0)
