"""A server on a real port: what it refuses, and that it does so at once and with the right status."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from tests.programs import until
from tests.serve.served import Gated, program
from trainband.errors import AddressInUse, YourError
from trainband.serve import InferenceServer, ServedModel, ServeOptions, SourceState, SourceStatus
from trainband.serve.app import LARGEST_BODIES

PREDICT = "/v1/models/gated:predict"
BODY = json.dumps({"instances": [[1.0, 2.0]]}).encode()


class ModelSource:
    """A model that is at hand."""

    def __init__(self, model: ServedModel) -> None:
        self.status = SourceStatus(SourceState.FIXED, "given by a test")
        self._model = model

    def open(self, name: str = "") -> ServedModel:
        del name
        return self._model

    def run(self, on_version: Any, stop: threading.Event) -> None: ...


@contextmanager
def serving(gated: Gated, **options: Any) -> Iterator[InferenceServer]:
    with InferenceServer(
        ModelSource(gated.model()), port=0, options=ServeOptions(max_batch=4, **options), say=lambda _: None
    ) as server:
        try:
            yield server
        finally:
            gated.open.set()


def post(server: InferenceServer, body: bytes = BODY) -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", PREDICT, body)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read()), {name.lower(): value for name, value in answer.getheaders()}
    connection.close()
    return found


def raw(server: InferenceServer, data: bytes, *, shut: bool = False) -> bytes:
    """What is answered until the server closes the connection, or nothing comes for long."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as one:
        one.sendall(data)
        if shut:
            one.shutdown(socket.SHUT_WR)
        found = b""
        while b"\r\n\r\n" not in found and (more := one.recv(65536)):
            found += more
        return found


def test_bodies_are_limited_whatever_they_say() -> None:
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\n".encode()
    short = head + b"Content-Length: 900\r\n\r\n" + BODY
    with serving(Gated(), request_timeout_s=0.5) as server:  # the rest never comes
        assert raw(server, short).startswith(b"HTTP/1.1 408")
    with serving(Gated(), max_body_bytes=1000) as server:
        assert post(server)[0] == 200
        # by what Content-Length says, before a byte has come
        assert raw(server, head + b"Content-Length: 1001\r\n\r\n").startswith(b"HTTP/1.1 413")
        # by what comes, where it says nothing
        chunks = b"3e8\r\n" + bytes(1000) + b"\r\n1\r\n0\r\n0\r\n\r\n"
        assert raw(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks).startswith(b"HTTP/1.1 413")
        # a body shorter than it says: the client has left
        assert not raw(server, short, shut=True).startswith(b"HTTP/1.1 2")
        # one longer than it says: what is over is no request, which a parser may find before the answer to the first
        longer = head + f"Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY + b"abc"
        assert raw(server, longer).startswith((b"HTTP/1.1 200", b"HTTP/1.1 400"))
        assert raw(server, head + b"Content-Length: x\r\n\r\n").startswith(b"HTTP/1.1 400")
        assert post(server)[0] == 200


def test_bodies_that_are_being_sent_are_limited_together() -> None:
    with serving(Gated(), max_body_bytes=1000) as server, ExitStack() as stack:
        senders = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            for _ in range(LARGEST_BODIES)
        ]
        for one in senders:
            one.sendall(f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode())
        until(lambda: server.app.metrics.in_flight == LARGEST_BODIES, "all requests")
        status, value, _ = post(server)
        assert (status, value["error"]) == (503, "bodies of 64,000 bytes are in progress; retry later.")
        for one in senders:
            one.close()
        until(lambda: not server.app.metrics.in_flight, "the end of all requests")
        assert post(server)[0] == 200


def test_more_requests_than_may_be_under_way_are_told_to_come_back() -> None:
    gated = Gated()
    with serving(gated, max_concurrency=1) as server:
        gated.open.clear()
        found: list[Any] = []
        first = threading.Thread(target=lambda: found.append(post(server)))
        first.start()
        assert gated.running.acquire(timeout=10)
        status, value, headers = post(server)
        assert (status, headers["retry-after"]) == (503, "1")
        assert "1 requests are in progress" in value["error"]
        gated.open.set()
        first.join()
        assert found[0][:2] == (200, {"predictions": [[2.0, 4.0]]})
        assert post(server)[0] == 200


def test_a_request_that_takes_too_long_is_answered_and_later_ones_are_computed() -> None:
    gated = Gated()
    with serving(gated, request_timeout_s=0.2) as server:
        gated.open.clear()
        status, value, _ = post(server)
        assert (status, value) == (504, {"error": "there was no answer within 0.2 s."})
        gated.open.set()
        server.app._options = ServeOptions()  # noqa: SLF001 - enough time
        assert post(server)[0] == 200


def test_one_that_was_asked_to_end_answers_for_a_while_and_is_not_ready() -> None:
    with serving(Gated(), drain_s=600.0) as server:
        closing = threading.Thread(target=server.close)
        closing.start()
        until(lambda: httpx.get(f"{server.url}/v2/health/ready").status_code == 503, "its being not ready")
        assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
        assert post(server)[0] == 200
        server._drained.set()  # noqa: SLF001
        closing.join()


def test_a_model_that_fails_answers_500_and_goes_on() -> None:
    gated = Gated()
    said: list[str] = []
    with InferenceServer(ModelSource(gated.model()), port=0, say=said.append) as server:
        run = gated._run  # noqa: SLF001

        def failing(inputs: Any) -> Any:
            if inputs["input"][0, 0] == 13:
                raise ArithmeticError("an unlucky number")
            return run(inputs)

        object.__setattr__(server.model.current, "run", failing)
        status, value, _ = post(server, b'{"instances": [[13, 0]]}')
        assert (status, value) == (500, {"error": "the model failed: ArithmeticError: an unlucky number"})
        assert said == ["the model failed: ArithmeticError: an unlucky number"]
        assert post(server)[0] == 200


def test_a_port_that_is_taken_and_a_setting_that_cannot_be() -> None:
    with serving(Gated()) as server, pytest.raises(AddressInUse, match=f"cannot listen on 127.0.0.1:{server.port}"):
        InferenceServer(program(), port=server.port).__enter__()
    with pytest.raises(YourError, match="max_batch must be greater than 0, got 0"):
        ServeOptions(max_batch=0)
