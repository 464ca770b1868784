"""The client of JAX's coordination service that each process of a job has."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import jax
import pytest

from trainband.cluster.credentials import NO_CREDENTIALS
from trainband.cluster.resolvers.proxies import without_proxies
from trainband.errors import ClusterError
from trainband.spmd import coordination
from trainband.spmd import jax_internals as inside
from trainband.spmd.coordination import Coordination, connected

VARIABLES = ("http_proxy", "https_proxy", "grpc_proxy", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.0)
        yield server


def address_of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_web_proxy_does_not_stand_between_tasks(silent: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, f"http://{address_of(silent)}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = address_of(free)
    service = inside.service_at(address, 1, heartbeat_s=60, shutdown_s=5, certificates=None)
    client = connected(address, 0, "worker:0", None, pytest.fail, connect_s=20)
    with pytest.raises(BlockingIOError):
        silent.accept()
    client.shutdown()
    service.shutdown()
    with without_proxies():
        assert not any(name in os.environ for name in VARIABLES)
    assert all(os.environ[name] for name in VARIABLES)


@pytest.mark.parametrize(
    ("started", "words"),
    [
        ("as worker:0", r"this process already takes part in a job of several workers \(as worker:0\)"),
        ("", "JAX has already started its backends, without the other workers"),
    ],
)
def test_a_process_that_can_take_part_no_more_is_told_why(
    started: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax.devices()
    monkeypatch.setattr(coordination, "_started", started)
    tasks = ["worker:0", "worker:1"]
    with pytest.raises(ClusterError, match=words):
        Coordination("127.0.0.1:1", "127.0.0.1", 1, tasks, start_s=1.0, say=print, credentials=NO_CREDENTIALS)


WAITS = """
from trainband.runtime.waiting import say_on_stderr
from trainband.spmd.coordination import connected
connected({address!r}, 1, "worker:0 at a:1", None, say_on_stderr, connect_s=4)
"""


def test_a_service_that_never_answers_is_named(silent: socket.socket) -> None:
    code = WAITS.format(address=address_of(silent))  # in a process of its own, because JAX ends it
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    assert "waiting for JAX's coordination service of worker:0 at a:1 to answer (2 s)" in done.stderr
    assert "waited 3.0 s for JAX's coordination service of worker:0 at a:1 to answer; check that" in done.stderr
