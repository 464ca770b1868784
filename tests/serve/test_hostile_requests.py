"""Requests that were made to stop the server, or to have it fail: each is refused in a sentence, and others go on."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.serve.served import EXAMPLE, ask, client, program, run, served, two_inputs
from trainband.runtime.http.access import Access
from trainband.serve import ServedModel, tensors
from trainband.serve.app import App

PREDICT = "/v1/models/scaled:predict"
INFER = "/v2/models/scaled/infer"
PAIR = "/v1/models/pair:predict"
STALL_S = 0.15
"""Processor time between two rounds of the event loop, on a slow machine; the design asks for 0.05."""


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with served(ServedModel.of(program())) as made:
        yield made


@pytest.fixture(scope="module")
def pair() -> Iterator[App]:
    with served(ServedModel.of(two_inputs(), "pair")) as made:
        yield made


async def stalled_s(request: Any) -> tuple[httpx.Response, float]:
    """An answer, and the most processor time that this process used while the event loop did not come round."""
    asked = asyncio.ensure_future(request)
    worst, before = 0.0, time.process_time()
    while not asked.done():
        await asyncio.sleep(0)
        now = time.process_time()
        worst, before = max(worst, now - before), now
    return await asked, worst


def answered(app: App, path: str, content: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    """What is answered, which has kept the event loop from nothing else."""

    async def asked() -> tuple[httpx.Response, float]:
        async with client(app) as http:
            return await stalled_s(http.post(path, content=content, headers=headers))

    answer, stall = run(asked())
    assert stall < STALL_S, (path, content[:60], stall)
    return answer


def tensor_of(**changes: Any) -> bytes:
    """A request of version 2 with these fields of its input."""
    values = {"name": b'"input"', "shape": b"[2,2]", "datatype": b'"FP32"', "data": b"[0,1,2,3]", **changes}
    return b'{"inputs":[{' + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in values.items()) + b"}]}"


def rows(values: bytes) -> bytes:
    """A request of TensorFlow Serving's."""
    return b'{"instances":' + values + b"}"


DEEP = b"[" * 100_000 + b"]" * 100_000
MANY = b",".join([b"65535"] * 400_000)
HOSTILE = [
    (INFER, tensor_of(shape=b"[" + MANY + b"]"), "4,096 bytes"),
    (INFER, tensor_of(shape=b"[" + b",".join([b"65535"] * 500) + b"]"), "500 axes"),
    (INFER, tensor_of(shape=b"[" + b"9" * 5000 + b"]"), "4,096 bytes"),
    (INFER, tensor_of(shape=b"[" + b"9" * 3000 + b",2]"), "has shape"),
    (INFER, tensor_of(shape=b"[4611686018427387904,4611686018427387904]"), "has shape"),
    (INFER, tensor_of(parameters=b'{"a":[' + MANY + b"]}"), "4,096 bytes"),
    (INFER, tensor_of(parameters=b"{" + b'"a":1,' * 3 + b'"b":2}'), "'a' is given twice"),
    (INFER, tensor_of(parameters=b'{"binary_data_size":' + b"9" * 4000 + b"}"), "binary_data_size"),
    (INFER, tensor_of(name=b'"' + b"x" * (4 << 20) + b'"'), "no input"),
    (INFER, tensor_of(name=b'"\\ud800"'), "cannot read"),
    (INFER, tensor_of(data=DEEP), "nested too deeply"),
    (INFER, tensor_of(data=b"[NaN,1,2,\xff\xfe]"), "not UTF-8"),
    (INFER, tensor_of(data=b"[" + b"NaN," * 400_000 + b"1]"), "send a binary tensor"),
    (INFER, tensor_of(data=b"[" + b"[]," * 1_000_000 + b"[]]"), "cannot read"),
    (INFER, tensor_of(data=b"[" + MANY + b"]"), "needs 4 elements"),
    (INFER, b'{"inputs":[' + b",".join([b"{}"] * 400_000) + b"]}", "8,192 objects"),
    (INFER, b'{"inputs":[],"outputs":[' + b",".join([b'{"name":"a"}'] * 300_000) + b"]}", "8,192 objects"),
    (INFER, b'{"id":"\\ud800",' + tensor_of(data=b"[NaN,1,2,3]")[1:], "the id"),
    (INFER, b'{"id":"' + b"x" * 5000 + b'",' + tensor_of()[1:], "the id"),
    (INFER, tensor_of()[:-1] + b',"inputs":[]}', "'inputs' is given twice"),
    (INFER, tensor_of()[:-1] + b',"inp\\u0075ts":[]}', "'inputs' is given twice"),
    (PREDICT, b'{"instances":[[1,2]],"instances":[[1,2]]}', "'instances' is given twice"),
    (PREDICT, rows(DEEP), "cannot read"),
    (PREDICT, rows(b"[[" + b"9" * 5000 + b",1]]"), "cannot read"),
    (PREDICT, rows(b"[[1,2]," * 300_000 + b"[1]" + b"]" * 300_000), "cannot read"),
    (PREDICT, rows(b"[" + b"[1,2]," * 300_000 + b"[1]]"), "differ in length"),
    (PREDICT, rows(b'[{"\xff":1}]'), "cannot read"),
    (PREDICT, rows(b"[" + b",".join([b'{"input":[1,2]}'] * 100_000) + b"]"), "8,192 objects"),
    (PREDICT, b'{"signature_name":"\\ud800","instances":[[NaN,1]]}', "no signature"),
    (PREDICT, b'{"inputs":{' + b",".join(b'"a%d":1' % at for at in range(100_000)) + b"}}", "names"),
    (PREDICT, b"\xff\xfe\xfd", "cannot read"),
    (PREDICT, b'{"instances":' + b" " * 3_000_000 + b"[[1,2,3]]}", "float32[1, 3]"),
]


@pytest.mark.parametrize(("path", "body", "found"), HOSTILE, ids=range(len(HOSTILE)))
def test_it_is_refused_in_a_sentence_and_nobody_else_waits(app: App, path: str, body: bytes, found: str) -> None:
    answer = answered(app, path, body)
    error = answer.json()["error"]
    assert (answer.status_code, found in error, "\n" in error) == (400, True, False), error[:300]
    assert len(error) <= 1000
    packed = gzip.compress(body, 1)
    assert answered(app, path, packed, {"Content-Encoding": "gzip"}).json() == answer.json()


HEADERS = [
    ({"Content-Length": "9" * 5000}, 400),
    ({"Content-Length": "-1"}, 400),
    ({"Content-Length": "17"}, 400),
    ({"Content-Length": "1e3"}, 400),
    ({"Inference-Header-Content-Length": "9" * 5000}, 400),
    ({"Inference-Header-Content-Length": "\u0663"}, 400),
    ({"Content-Encoding": "br" * 2000}, 415),
]


@pytest.mark.parametrize(("headers", "status"), HEADERS)
def test_headers_that_lie(app: App, headers: dict[str, str], status: int) -> None:
    encoded = {name: value.encode() for name, value in headers.items()}
    assert ask(app, "POST", INFER, content=tensor_of(), headers=encoded).status_code == status


def test_long_bodies_are_read_and_written_as_short_ones_are(app: App, pair: App) -> None:
    """Beyond a window: the same numbers, whatever the notation; with nothing in the way of other requests."""
    count = 4000
    array = np.random.default_rng(0).standard_normal((count, 2)).astype(np.float32)
    text = json.dumps(array.tolist(), indent=1).encode()
    for path, body in (
        (PREDICT, rows(text)),
        (INFER, tensor_of(shape=b"[%d,2]" % count, data=text)),
        (INFER, tensor_of(shape=b"[%d,2]" % count, data=json.dumps(array.reshape(-1).tolist()).encode())),
    ):
        answer = answered(app, path, body)
        assert answer.status_code == 200, answer.text[:300]
        value = answer.json()
        if path == PREDICT:
            found = [row["scaled"] for row in value["predictions"]]
        else:
            found = next(one["data"] for one in value["outputs"] if one["name"] == "scaled")
        assert np.array_equal(np.array(found, np.float32).reshape(-1, 2), array * 2)
    several = [{"x": [float(at)] * 2, "n": at} for at in range(2000)]
    answer = answered(pair, PAIR, rows(json.dumps(several, indent=4).encode()))
    assert answer.json() == {"predictions": [[11.0 * at] * 2 for at in range(2000)]}


def test_random_changes_never_make_the_server_fail(app: App) -> None:
    """A thousand requests that are nearly right. Each is answered, and none by 5xx."""
    chance = random.Random(44)
    seeds = [
        (PREDICT, rows(b"[[1.5,2],[3,4e0]]")),
        (PREDICT, b'{"inputs":{"input":[[1,2]]},"signature_name":"serving_default"}'),
        (PREDICT, rows(b'[{"input":[NaN,-Infinity]}]')),
        (INFER, tensor_of(parameters=b'{"a":1}')),
        (INFER, b'{"id":"a","parameters":{"binary_data_output":true},"outputs":[{"name":"scaled"}],' + tensor_of()[1:]),
    ]
    pieces = [b"[", b"]", b"{", b"}", b'"', b",", b":", b"\\", b"-", b"9" * 400, b"\xff", b"\\ud800", b"NaN", b"null",
              b"1e999", b"[[]]", b"true", b"\0", b'"shape"', b"-1"]  # fmt: skip

    async def asked() -> None:
        async with client(app) as http:
            for _ in range(1000):
                path, body = chance.choice(seeds)
                for _ in range(chance.randint(1, 3)):
                    at, length = chance.randrange(len(body)), chance.choice((0, 0, 1, 5))
                    body = body[:at] + chance.choice(pieces) + body[at + length :]
                answer = await http.post(path, content=body)
                assert answer.status_code in (200, 400), (body, answer.text)

    run(asked())


TOKEN = "0123456789abcdef"


def test_only_requests_that_mean_this_server_are_answered(app: App) -> None:
    app._access = Access()  # noqa: SLF001
    try:
        body = rows(json.dumps(EXAMPLE.tolist()).encode())
        for headers, status in (
            ({}, 200),
            ({"Origin": "http://localhost"}, 200),
            ({"Origin": "https://evil.example", "Content-Type": "text/plain"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": "http://localhost:9999"}, 403),
            ({"Host": "evil.example"}, 400),
            ({"Host": "127.0.0.1.evil.example:8000"}, 400),
            ({"Host": "[::1]:8000"}, 200),
        ):
            assert ask(app, "POST", PREDICT, content=body, headers=headers).status_code == status, headers
        app._access = Access(token=TOKEN, loopback=False)  # noqa: SLF001
        for path in ("/", "/metrics", "/v2", "/v2/models/scaled", "/nothing"):
            answer = ask(app, "GET", path)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/scaled/ready"):
            assert ask(app, "GET", path).status_code == 200, path
        for given, status in ((f"Bearer {TOKEN}", 200), (f"bearer {TOKEN}", 200), (TOKEN, 401), ("Bearer \xe9", 401)):
            bearer = {"Authorization": given.encode("latin-1")}
            assert ask(app, "POST", PREDICT, content=body, headers=bearer).status_code == status, given
    finally:
        app._access = None  # noqa: SLF001


def test_windows_change_nothing_of_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    arrays = {"a": random.standard_normal((7, 5, 3)).astype(np.float32), "b": random.integers(0, 9, 7)}
    for infinite in (False, True):
        if infinite:
            arrays["a"][2, 1, 1] = np.inf
        whole = bytes(tensors.json_of(arrays["a"])), bytes(tensors.json_of_rows(arrays))
        assert json.loads(whole[0]) == arrays["a"].tolist()
        assert [row["b"] for row in json.loads(whole[1])] == arrays["b"].tolist()
        for window in (2, 10, 40, 100):
            with monkeypatch.context() as context:
                context.setattr(tensors, "WINDOW", window)
                assert (bytes(tensors.json_of(arrays["a"])), bytes(tensors.json_of_rows(arrays))) == whole
