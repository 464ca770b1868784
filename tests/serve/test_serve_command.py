"""`trainband serve` as a process: it comes up, answers, and on SIGTERM finishes what is under way."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from tests.programs import until
from tests.serve.served import program
from tests.serve.test_sources import commit
from trainband.cli.serve import serve
from trainband.cluster.certificates import issue, make_authority
from trainband.errors import YourError
from trainband.export import export_program
from trainband.runtime.http.access import Access
from trainband.runtime.http.server import tls_context
from trainband.serve import InferenceServer

PROGRAM = """
import os, time
import jax

def wait(batch):
    while (batch == 13).any() and not os.path.exists("go"):
        time.sleep(0.01)
    return batch

def scaled(params, batch):
    waited = jax.pure_callback(wait, jax.ShapeDtypeStruct(batch.shape, batch.dtype), batch)
    return waited * params["factor"]
"""


def post(port: int, rows: list[list[float]], found: list[Any]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/v1/models/scaled:predict", json.dumps({"instances": rows}))
    answer = connection.getresponse()
    found.append((answer.status, json.loads(answer.read())))
    connection.close()


def get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 20.0).close()
    except ConnectionError:
        return False
    return True


def test_sigterm_finishes_what_is_under_way(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    commit(tmp_path / "runs", 10, 2.0)
    words = ["runs", "--model", "program.py:scaled", "--input", "input:f32[batch,2]", "--port", "0", "--max-batch", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainband.cli.main", "serve", *words, "--drain", "0.1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"serving scaled, version 10, on cpu, at http://127\.0\.0\.1:(\d+) ", line)
        assert found, line
        port = int(found[1])
        assert get(port, "/v2/health/ready") == 200
        answers: list[Any] = []
        slow = threading.Thread(target=post, args=(port, [[13, 1]], answers))
        slow.start()
        until(lambda: 'in_flight{model="scaled"} 1' in _text(port, "/metrics"), "the request")
        process.send_signal(signal.SIGTERM)
        until(lambda: not is_open(port), "the end of its port")
        (tmp_path / "go").touch()
        slow.join()
        assert answers == [(200, {"predictions": [[26.0, 2.0]]})]
        assert process.wait(60) == 128 + signal.SIGTERM
        assert process.stderr is not None
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def _text(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_a_directory_that_is_no_model_says_what_is_missing(tmp_path: Path) -> None:
    commit(tmp_path / "runs", 10, 2.0)
    answer = CliRunner().invoke(serve, [str(tmp_path / "runs")])
    assert isinstance(answer.exception, YourError)
    assert "name the function: --model program.py:predict" in str(answer.exception)
    export_program(program(), tmp_path / "out", "stablehlo")
    (tmp_path / "out" / "program.jax_export").write_bytes(b"")
    with pytest.raises(YourError, match="is not the file that was exported"):
        CliRunner().invoke(serve, [str(tmp_path / "out"), "--port", "0"], catch_exceptions=False)


def test_it_says_what_is_open_to_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    out = tmp_path / "out"
    out.mkdir()  # no model: the command ends behind what it says

    def said(*words: str) -> str:
        return CliRunner().invoke(serve, [str(out), *words]).stderr

    assert "WARNING: anyone who reaches 0.0.0.0 can get predictions" in said("--host", "0.0.0.0")
    assert "warning" not in said("--host", "127.0.0.1")
    assert "warning" not in said("--host", "0.0.0.0", "--token-file", str(token))
    monkeypatch.setenv("TRAINBAND_SERVE_TOKEN_FILE", str(token))
    assert "warning" not in said("--host", "0.0.0.0")
    assert "give both" in said("--tls-key", str(token))
    with pytest.raises(YourError, match=r"--token-file .* cannot be read"):
        CliRunner().invoke(serve, [str(out), "--token-file", str(tmp_path / "no")], catch_exceptions=False)


def test_a_token_over_tls(tmp_path: Path) -> None:
    make_authority(tmp_path)
    certificate = issue(tmp_path, "ps:0", ["127.0.0.1"])
    tls = tls_context(certificate, certificate.with_suffix(".key"))
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    access = Access.at("127.0.0.1", token="0123456789abcdef")
    with (
        InferenceServer(program(), port=0, access=access, tls=tls) as server,
        httpx.Client(base_url=server.url, verify=trusted) as client,
    ):
        assert server.url.startswith("https://")
        body = {"instances": [[1.0, 2.0]] * 20_000}
        assert client.get("/v2/health/ready").status_code == 200
        assert client.post("/v1/models/scaled:predict", json=body).status_code == 401
        answer = client.post(
            "/v1/models/scaled:predict", json=body, headers={"Authorization": "Bearer 0123456789abcdef"}
        )
        assert len(answer.json()["predictions"]) == 20_000
