"""`trainband status`: asked of a real ps, over the network."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax
import pytest
from msgspec.structs import replace
from rich.console import Console
from tests.ps.jobs import FAST, gradient_of, in_thread
from tests.ps.plans import blocks_of, plan_of

from trainband.cli.main import main
from trainband.cli.status import show
from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.job.statistics import PsStatus
from trainband.launch import ReservedPorts
from trainband.ps.server import Server
from trainband.ps.service.service import ParameterService
from trainband.ps.worker.client import JobClient
from trainband.wire.messages.calls import UNLIMITED
from trainband.wire.network import Network

PARAMS = {"w": np.zeros((6, 2), np.float32), "b": np.ones(2, np.float32)}


@dataclass
class RealJob:
    """A ps that serves on this machine, and one worker that has made three of ten updates."""

    spec: ClusterSpec
    served: Future[str]
    client: JobClient

    @property
    def address(self) -> str:
        return self.spec.task_address("ps", 0)


@pytest.fixture(scope="module")
def job() -> Iterator[RealJob]:
    """Set up once: the tests only look."""
    with ReservedPorts(2) as ports:
        spec = ClusterSpec({"ps": [ports.addresses[0]], "worker": [ports.addresses[1]]})
        said: list[str] = []
        server = Server(spec, job_name="ps", task_index=0, timeouts=FAST, say=said.append)
        served = in_thread(server.join, "ps")
        plan = plan_of(PARAMS, optax.sgd(1.0))
        client = JobClient(
            Cluster(spec=spec, task=Task("worker", 0)), plan, transport=Network(), timeouts=FAST, say=said.append
        )
        try:
            now = client.join(lambda: blocks_of(plan, PARAMS))
            client.training.start_training(1, 10)
            gradient = gradient_of(plan, 1.0)
            for _ in range(3):
                now = client.exchanger.push(gradient, now.versions, loss=0.125, examples=32, finite=True)
            yield RealJob(spec, served, client)
            while not now.done:
                now = client.exchanger.push(gradient, now.versions, loss=0.125, examples=32, finite=True)
        finally:
            client.leave()
            assert served.result(20.0) == "the job is complete"


def status(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `trainband status ...`."""
    with pytest.raises(SystemExit) as ended:
        main(["status", *arguments])
    found = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, found.out, found.err


def test_text(job: RealJob, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = status(capsys, job.address)
    assert (code, err) == (0, "")
    for words in (
        f"ps:0 at {job.address}, up",
        "global step 3 of 10,",
        "loss 0.1250",
        "update rule async",
        "staleness median 0, p99 0, largest 0",
        "gradients in 168 B, params out",
        "shard 56 B",
        f"{os.getpid()} on",
    ):
        assert words in out
    (worker,) = [line for line in out.splitlines() if "worker:0" in line and "live" in line]
    assert "0.1250" in worker
    (variable,) = [line for line in out.splitlines() if "float32[6,2]" in line]
    assert {"w", "ps:0"} <= set(variable.split())
    assert "48 B" in variable


def test_json(job: RealJob, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = status(capsys, "--json", job.address)
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    assert (found["task"], found["address"], found["version"], found["last_version"]) == ("ps:0", job.address, 3, 10)
    assert set(found) == set(PsStatus.__struct_fields__)
    (worker,) = found["workers"]
    assert (worker["task"], worker["presence"], worker["pushes"], worker["loss"]) == ("worker:0", "live", 3, 0.125)
    assert worker["transport"] in ("shared memory", "flight")
    assert found["variables"][1] == {
        "name": "w",
        "shape": [6, 2],
        "dtype": "float32",
        "nbytes": 48,
        "slices": [{"ps": "ps:0", "start": 0, "stop": 6}],
    }


def test_records_that_travel_as_arrays_have_names(job: RealJob, capsys: pytest.CaptureFixture[str]) -> None:
    (replica,) = json.loads(status(capsys, "--json", job.address)[1])["replicas"]
    assert (replica["shard"], replica["ps"], replica["role"]) == (0, 0, "primary")
    assert set(replica["term"]) == {"number", "primary", "standby", "arbiter"}


def test_something_else_that_listens_is_no_ps(capsys: pytest.CaptureFixture[str]) -> None:
    def hang_up() -> None:
        with contextlib.suppress(OSError):  # the test is over
            while True:
                server.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=hang_up, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        code, out, err = status(capsys, address, "--timeout", "2")
        server.shutdown(socket.SHUT_RDWR)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: the server at {address} is not a trainband ps")
    assert err.endswith("Give trainband status the address of a ps of a running job.\n")


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with ReservedPorts(1) as ports:
        code, out, err = status(capsys, ports.addresses[0], "--timeout", "1")
    assert code != 0
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"error: nothing listens at {ports.addresses[0]}. Give trainband status the address of a ps")
    assert "workers listen on nothing" in line


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = status(capsys, "nonsense", "--timeout", "1")
    assert code != 0
    assert out == ""
    assert "nonsense" in err
    assert "Traceback" not in err


EMPTY = ParameterService(
    Cluster(spec=ClusterSpec({"ps": ["a:1"], "worker": ["b:1"]}), task=Task("ps", 0)), timeouts=FAST
).status()

PICTURES: list[tuple[PsStatus, str]] = [
    (EMPTY, "global step 0, 0 steps/s, loss not known yet"),
    (EMPTY, "update rule not defined yet"),
    # no end was asked for
    (replace(EMPTY, version=1234567, last_version=UNLIMITED + 5), "global step 1,234,567, 0 steps/s"),
    (replace(EMPTY, version=7, last_version=7), "global step 7 of 7"),
    (replace(EMPTY, loss=0.5, learning_rate=0.001), "0 steps/s, loss 0.5000, learning rate 0.001"),
    (replace(EMPTY, rule={"name": "bounded", "bound": 3}), "update rule bounded(bound=3)"),
    (replace(EMPTY, waiting_for=("worker:1", "worker:2")), "waiting for worker:1, worker:2"),
]


@pytest.mark.parametrize(("answer", "words"), PICTURES, ids=range(len(PICTURES)))
def test_pictures(answer: PsStatus, words: str) -> None:
    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        show(answer, console)
    assert words in capture.get()
