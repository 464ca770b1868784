"""What strangers send to a real port before a request is there: headers without end, nothing, two hosts, no TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainband.cluster.certificates import issue, make_authority
from trainband.errors import YourError
from trainband.runtime.http.connections import HttpLimits
from trainband.runtime.http.server import HttpServer, tls_context

LIMITS = HttpLimits(head_bytes=8192, head_s=60.0, keep_alive_s=60.0, connections=20, connections_of_host=20)
IMPATIENT = replace(LIMITS, head_s=0.5, keep_alive_s=0.5)
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - ASGI's signature
    """Answers with the path, at once."""
    body = scope["path"].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(limits: HttpLimits = LIMITS, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, int]]:
    """A server of `echo`; its address."""
    server = HttpServer(echo, name="http-test", host="127.0.0.1", port=0, limits=limits, grace_s=1.0, tls=tls)
    server.start()
    try:
        yield "127.0.0.1", server.port
    finally:
        assert server.stop(10.0)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with serving() as found:
        yield found


def talk(address: tuple[str, int], *parts: bytes) -> bytes:
    """What comes until the server closes the connection; sending stops when it does."""
    with socket.create_connection(address, 10.0) as one:
        try:
            for part in parts:
                one.sendall(part)
        except OSError:
            pass  # it has closed the connection, as it should; what it said is still to be read
        return read(one)


def read(one: socket.socket) -> bytes:
    found = b""
    try:
        while more := one.recv(65536):
            found += more
    except ConnectionResetError:
        pass
    return found


ENDLESS: list[tuple[str, Callable[[], Iterator[bytes]]]] = [
    ("headers", lambda: (b"a: " + b"b" * 1000 + b"\r\n" for _ in range(200_000))),
    ("a header", lambda: (b"b" * 1000 for _ in range(200_000))),
    ("trailers", lambda: iter([b"Transfer-Encoding: chunked\r\n\r\n0\r\n", *[b"a: " + b"b" * 999 + b"\r\n"] * 9999])),
]


@pytest.mark.parametrize(("what", "parts"), ENDLESS, ids=[what for what, _ in ENDLESS])
def test_headers_without_end_take_no_memory(address: tuple[str, int], what: str, parts: Any) -> None:
    del what
    before = psutil.Process().memory_info().rss
    talk(address, GET, *parts())
    assert psutil.Process().memory_info().rss - before < 32 << 20
    assert talk(address, GET + b"Connection: close\r\n\r\n").endswith(b"\r\n\r\n/")


REFUSED = [
    (GET + b"a: " + b"b" * 9000 + b"\r\n\r\n", 431),
    (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    (b"\r\n" * 5000, 431),
    (b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET http://localhost:81/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (GET + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    (GET + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (GET + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n", 400),
    (GET + b"Content-Length: " + b"9" * 100 + b"\r\n\r\n", 400),
    (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
]


@pytest.mark.parametrize(("data", "status"), REFUSED)
def test_what_is_no_request_to_this_server(address: tuple[str, int], data: bytes, status: int) -> None:
    assert talk(address, data).startswith(b"HTTP/1.1 %d " % status)


def test_an_absolute_target_of_this_server_and_a_second_request_are_answered(address: tuple[str, int]) -> None:
    own = b"GET http://localhost/a HTTP/1.1\r\nHost: localhost\r\n\r\n"
    found = talk(address, own + GET + b"\r\n" + GET + b"Connection: close\r\n\r\n")
    assert found.count(b"HTTP/1.1 200 OK") == 3
    with socket.create_connection(address, 10.0) as one:  # a request after another, with a pause
        for _ in range(2):
            one.sendall(GET + b"\r\n")
            assert one.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_offers_http_2_is_answered_in_http_1(address: tuple[str, int]) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    with socket.create_connection(address, 10.0) as one:
        one.sendall(GET + upgrade)
        assert one.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_requests_that_are_sent_without_reading_are_bounded(address: tuple[str, int]) -> None:
    found = talk(address, (GET + b"\r\n") * 1000)
    assert 0 < found.count(b"HTTP/1.1 200 OK") <= 20


def test_clients_that_keep_the_server_waiting_are_cut_off() -> None:
    body = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\na"
    with serving(IMPATIENT) as address, ExitStack() as stack:
        slow = []
        for data in (b"", b"GET / HT", GET + b"a: b", body, GET + b"\r\n"):
            slow.append(stack.enter_context(socket.create_connection(address, 20.0)))
            slow[-1].sendall(data)
        for one in slow:
            read(one)


def test_silent_clients_keep_nobody_out(address: tuple[str, int]) -> None:
    silent = [socket.create_connection(address, 10.0) for _ in range(100)]
    try:
        assert talk(address, GET + b"Connection: close\r\n\r\n").endswith(b"/")
    finally:
        for one in silent:
            one.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    directory = tmp_path_factory.mktemp("tls")
    make_authority(directory)
    return (certificate := issue(directory, "ps:0", ["127.0.0.1"])), certificate.with_suffix(".key")


def test_tls(pair: tuple[Path, Path]) -> None:
    with serving(LIMITS, tls_context(*pair)) as address:
        context = ssl.create_default_context(cafile=str(pair[0].with_name("ca.pem")))
        with (
            socket.create_connection(address, 10.0) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as one,
        ):
            one.sendall(GET + b"Connection: close\r\n\r\n")
            assert read(one).endswith(b"\r\n\r\n/")
        assert not talk(address, GET + b"\r\n").startswith(b"HTTP/1.1 2")
    with serving(IMPATIENT, tls_context(*pair)) as address:
        assert not talk(address, b"")  # a handshake that never begins


def test_certificates_that_cannot_be_used(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for certificate, key in ((pair[0], tmp_path / "missing"), (pair[1], pair[0])):
        with pytest.raises(YourError, match=r"--tls-certificate .* cannot be used"):
            tls_context(certificate, key)
