"""`trainband dashboard`: as a process, against a ps that serves on this machine."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.programs import LINE, Program, Programs, until
from tests.programs import programs as programs
from tests.ps.jobs import FAST, in_thread

from trainband.cli.main import main
from trainband.cluster import ClusterSpec
from trainband.launch import ReservedPorts
from trainband.monitor.inquiry import Inquiry
from trainband.ps.server import Server
from trainband.runtime.http.server import listening


@pytest.fixture
def job() -> Iterator[str]:
    """The address of a ps that waits for workers."""
    with ReservedPorts(2) as ports:
        spec = ClusterSpec({"ps": [ports.addresses[0]], "worker": [ports.addresses[1]]})
        server = Server(spec, job_name="ps", task_index=0, timeouts=FAST, say=lambda _: None)
        served = in_thread(server.join, "ps")
        try:
            yield spec.task_address("ps", 0)
        finally:
            server.shutdown()
            served.result(20.0)


def page_of(program: Program) -> tuple[str, str]:
    """The address that it printed, and the token in it."""
    found = program.wait_for(r"the page is at (http://[\d.:]+/)(?:\?token=(\S+))?")
    return found[1], found[2] or ""


def test_it_shows_a_job_until_ctrl_c(job: str, programs: Programs) -> None:
    program = programs.trainband("dashboard", job, "--port=0")
    address, token = page_of(program)
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}) as viewer:
        until(lambda: viewer.get(f"{address}api/job").json()["state"] == "running", "the first answer")
        told = viewer.get(f"{address}api/job").json()
    with Inquiry(job, 10.0) as inquiry:
        status = inquiry.ask()
    assert [view["incarnation"] for view in told["ps"]] == [status.incarnation]
    assert status.ps_addresses == (job,)
    program.interrupt()
    assert program.wait() == 0
    program.expect_no_noise()
    programs.expect_none_left()


REFUSED: list[tuple[list[str], str]] = [
    ([], "give the address"),
    (["127.0.0.1:1"], "nothing listens at 127.0.0.1:1. Give trainband dashboard the address"),
    (["nonsense"], "HOST:PORT"),
    (["--checkpoint-dir", "nowhere"], "is not a directory"),
    (["127.0.0.1:1", "--token-file", "nowhere"], "cannot be read"),
    (["127.0.0.1:1", "--insecure", "--token-file", "x"], "contradict"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_shown_is_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    port = ["--port=0"] if given else []
    with pytest.raises(SystemExit) as exited:
        main(["dashboard", *given, *port])
    assert exited.value.code == 2
    assert said in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit):
            main(["dashboard", "127.0.0.1:1", f"--port={port}"])
        assert "choose another --host or --port" in capsys.readouterr().err
        with listening("127.0.0.1", port, tries=50) as next_one:
            assert next_one.getsockname()[1] > port


TRAINS_IN_STEP = """
import os, sys, time
import jax.numpy as jnp, numpy as np, optax
import trainband

def batches():
    while True:
        if not os.path.exists(sys.argv[1]):
            time.sleep(0.1)
        yield np.ones(4, np.float32)

cluster = trainband.cluster.resolve()
trainband.Trainer(
    init=lambda key: {"w": jnp.ones(())},
    loss=lambda params, batch: (params["w"] * batch).mean(),
    optimizer=optax.sgd(0.01),
    strategy=trainband.MultiWorkerMirrored(cluster),
).fit(batches(), 600, checkpoint_dir=sys.argv[2] if len(sys.argv) > 2 else None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("directory", [["runs"], []], ids=["directory", "no directory"])
def test_run_serves_a_page_of_a_job_without_ps(programs: Programs, tmp_path: Path, directory: list[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINS_IN_STEP)
    given, go = [str(tmp_path / name) for name in directory], tmp_path / "go"
    run = programs.trainband("run", "--dashboard", "--ps=0", "--workers=2", str(script), str(go), *given)
    found = run.wait_for(r"the page of this job is at (http://[\d.:]+/)\?token=(\w+)")
    headers = {"authorization": f"Bearer {found[2]}"}
    assert httpx.get(f"{found[1]}api/job").status_code == 401

    def told() -> dict[str, Any]:
        job: dict[str, Any] = httpx.get(f"{found[1]}api/job", headers=headers).json()
        return job

    until(lambda: told()["rate"] > 0 and told()["loss"] is not None, "speed and loss")
    assert (told()["state"], told()["last_step"]) == ("running", 600)
    assert told()["source"] == (given[0] if given else "a job without checkpoint_dir")
    (curves,) = httpx.get(f"{found[1]}api/runs", headers=headers).json()
    assert curves["points"] > 0
    states: list[str] = []
    with httpx.stream("GET", f"{found[1]}events", headers=headers, timeout=60.0) as events:
        go.touch()
        for line in events.iter_lines():
            states += re.findall(r'"state":"(\w+)"', line)
            if states[-1:] == ["ended"]:
                break
    assert states[0] == "running"
    run.succeed()
    programs.expect_none_left()


@pytest.mark.slow
def test_run_serves_a_page_of_its_job_that_ends_with_it(programs: Programs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    flags = ("--train_steps=60", f"--go={go}")
    run = programs.trainband("run", "--dashboard", "--ps=2", "--workers=1", str(LINE), *flags)
    found = run.wait_for(r"the page of this job is at (http://[\d.:]+/)\?token=(\w+)")
    headers = {"authorization": f"Bearer {found[2]}"}
    assert httpx.get(f"{found[1]}api/job").status_code == 401

    def steps() -> int:
        told = httpx.get(f"{found[1]}api/job", headers=headers).json()
        return int(told["global_step"]) if len(told["ps"]) == 2 else 0

    until(lambda: steps() > 0, "the first steps")
    runs = f"{found[1]}api/runs"
    until(lambda: bool(httpx.get(runs, headers=headers).json()), "the history that its chief keeps")
    go.touch()
    run.succeed()
    with pytest.raises(httpx.ConnectError):
        httpx.get(found[1])
    programs.expect_none_left()
