"""Jobs on a Ray cluster of several nodes, which are real ones but for running on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.programs import MNIST, ROOT, Program, Programs

from trainband.cluster.task import Task
from trainband.errors import ClusterError, YourError
from trainband.launch.backend import Watcher
from trainband.launch.backends import ray as backend
from trainband.launch.backends.ray import Ray, read_resources
from trainband.launch.machines.ray import check_possible
from trainband.launch.request import JobRequest

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'trainband[ray]'")

TASK = """
import json, os, signal, subprocess, sys
config = json.loads(os.environ["TF_CONFIG"])
task = "{type}:{index}".format(**config["task"])
child = subprocess.Popen(["sleep", "300"])
assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "signals are blocked, as Ray has them in its workers"
print(task, "is", os.getpid(), "and all are", sorted(sum(config["cluster"].values(), [])))
while True:
    signal.pause()
"""
RAY = {
    "RAY_worker_niceness": "0",  # 15 by default, with which tasks get nothing beside other tests
    "RAY_AUTH_MODE": "disabled",  # else a token is put into the home directory
}
TASKS = ("ps:0", "worker:0", "worker:1")


class Nodes:
    """The nodes of a Ray cluster on this machine: see `tests.ray_nodes`."""

    def __init__(self) -> None:
        self._programs = Programs()
        self.network = f"127.{os.getpid() % 250 + 1}.{os.getpid() // 250 % 250}"
        self._directory = Path(tempfile.mkdtemp(prefix="ray-"))  # with a short name: Ray's sockets are in it
        environ = {
            **self._programs.environ,
            **RAY,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "TMPDIR": str(self._directory),
        }
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the nodes
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.ray_nodes", self.network, "2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environ,
            cwd=ROOT,
            text=True,
            process_group=0,
        )
        self.address: str = self._answer()["address"]

    def ask(self, request: str) -> dict[str, Any]:
        """Has nodes added or removed, and gives the state of the cluster."""
        assert self._process.stdin
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        return self._answer()

    def expect_nothing_left(self) -> None:
        """Waits until no task, actor, placement group and private file is there any more."""
        until = time.monotonic() + 40.0
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(0.2)
        assert not left, left

    def _left(self) -> list[str]:
        state = self.ask("state")
        left = [] if state["cpus"] == state["free"] and not state["groups"] else [str(state)]
        for process in self._programs.processes():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if "remote_task" in command or "reaper.py" in command or "sleep 300" in command or "script" in command:
                    left.append(command)
        return left + [str(path) for path in self._directory.glob("trainband-*")]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = next((line for line in self._process.stdout if line.startswith("{")), "")  # Ray prints there, too
        if not line:
            self._said.seek(0)
            pytest.fail(f"the Ray cluster has ended: {self._said.read().decode(errors='replace')[-5000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """Ends all."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(30.0)
        finally:
            self._process.stdout.close()
            self._said.close()
            self._programs.end_all()
            shutil.rmtree(self._directory, ignore_errors=True)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    found = Nodes()
    yield found
    found.close()


def job(programs: Programs, nodes: Nodes, *command: str) -> Program:
    """`trainband run --on ray` with one ps and two workers, spread over the nodes."""
    on = ("--on", "ray", "-o", f"address={nodes.address}", "-o", "strategy=SPREAD")
    program = (sys.executable, "-m", "trainband.cli.main", "run", *on, *command)
    return programs.start("trainband run", *program, environ=RAY)


def process_of(run: Program, task: str, nth: int = 1) -> tuple[int, str]:
    """The process of a task in its nth life, and the addresses of all tasks as it knows them."""
    found = run.wait_for(rf"(?s)(?:^\[{task}\] {task} is (\d+) and all are ([^\n]*)$.*?){{{nth}}}")
    return int(found[1]), found[2]


def node_of(nodes: Nodes, run: Program, task: str) -> int:
    """The number of the node on which a task runs, from the list that all tasks print."""
    addresses = re.findall(r"[\d.]+\.(\d+):", process_of(run, task)[1])
    assert len(addresses) == len(TASKS)
    process = process_of(run, task)[0]
    parent = process
    while True:  # up to the node's process, whose command has its address
        parent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        command = Path(f"/proc/{parent}/cmdline").read_bytes().decode()
        if found := re.search(rf"--node_ip_address={re.escape(nodes.network)}\.(\d+)", command):
            return int(found[1])
        assert parent > 1, f"the process {process} of {task} is on no node of Ray's"


@needs_ray
@pytest.mark.limit(240)
def test_a_job_trains_as_it_does_on_one_machine(programs: Programs, nodes: Nodes) -> None:
    run = job(programs, nodes, str(MNIST), "--train_steps", "1000")
    output = run.succeed(180.0)
    accuracy = re.search(
        r"^\[worker:0\] held out: loss [\d.]+, accuracy (\d\.\d+) on 355 examples at global step 1000$", output, re.M
    )
    assert accuracy, run.output
    assert float(accuracy[1]) > 0.93
    assert "[ps:0] trainband: ps:0 ends: the job is complete" in run.stderr
    nodes.expect_nothing_left()


@needs_ray
@pytest.mark.limit(240)
def test_killed_tasks_are_restarted_and_ctrl_c_leaves_nothing(programs: Programs, nodes: Nodes, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TASK)
    run = job(programs, nodes, "--restarts", "2", str(script))
    for task in TASKS:
        process_of(run, task)
    for task in ("worker:1", "ps:0"):
        process, addresses = process_of(run, task)
        os.kill(process, signal.SIGKILL)
        again, same = process_of(run, task, 2)
        assert again != process
        assert same == addresses
        assert f"{task} failed (killed by SIGKILL); restarting it in 1 s (1 of 2)" in run.stderr
    run.send(signal.SIGINT)
    assert run.wait() == 130, run.output
    nodes.expect_nothing_left()


@needs_ray
@pytest.mark.slow
def test_nothing_stays_when_the_launcher_is_killed(programs: Programs, nodes: Nodes, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TASK)
    run = job(programs, nodes, str(script))
    for task in TASKS:
        process_of(run, task)
    run.send(signal.SIGKILL)
    run.wait()
    nodes.expect_nothing_left()


@needs_ray
@pytest.mark.slow
@pytest.mark.limit(200)
def test_a_worker_whose_node_dies_comes_back_on_another(programs: Programs, nodes: Nodes, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TASK)
    nodes.ask("add 3")
    run = job(programs, nodes, "--restarts", "2", str(script))
    on = {node_of(nodes, run, task): task for task in TASKS}
    number, task = next((number, task) for number, task in on.items() if number != 1 and task != "ps:0")
    nodes.ask(f"remove {number}")
    try:
        process_of(run, task, 2)
        assert f"[{task}] trainband: lost {task}: the Ray node {nodes.network}.{number} has died" in run.stderr
        assert f"{task} failed (killed by SIGKILL); restarting it in 1 s (1 of 2)" in run.stderr
        run.send(signal.SIGINT)
        assert run.wait() == 130, run.output
    finally:
        nodes.ask(f"add {number}")
    nodes.expect_nothing_left()


@needs_ray
@pytest.mark.slow
@pytest.mark.limit(200)
def test_the_whole_job_moves_when_the_node_of_a_ps_dies(programs: Programs, nodes: Nodes, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TASK)
    nodes.ask("add 3")
    number = 1
    while number == 1:  # the head cannot be lost
        run = job(programs, nodes, "--restarts", "2", str(script))
        number = node_of(nodes, run, "ps:0")
        if number == 1:
            run.send(signal.SIGINT)
            run.wait()
    before = process_of(run, "worker:0")[1]
    nodes.ask(f"remove {number}")
    try:
        known = {process_of(run, task, 2)[1] for task in TASKS}
        assert len(known) == 1
        assert known != {before}
        assert f"{nodes.network}.{number}:" not in known.pop()
        assert re.search(r"ps:0 failed .*; stopping worker:0, worker:1 and restarting the job in 1 s", run.stderr)
        run.send(signal.SIGINT)
        assert run.wait() == 130, run.output
    finally:
        nodes.ask(f"add {number}")
    nodes.expect_nothing_left()


@needs_ray
@pytest.mark.slow
@pytest.mark.limit(200)
def test_a_cluster_of_its_own_ends_with_the_job(programs: Programs) -> None:
    script = ROOT / "examples" / "keras_digits.py"
    on = ("--on", "ray", "-o", "address=local")
    command = (sys.executable, "-m", "trainband.cli.main", "run", *on, str(script), "--epochs", "3")
    run = programs.start("trainband run", *command, environ=RAY)
    assert run.wait(180.0) == 0, run.output
    accuracy = re.search(r"accuracy (\d\.\d+)", run.stdout)
    assert accuracy, run.output
    assert float(accuracy[1]) > 0.9


@needs_ray
def test_what_the_cluster_can_never_give_is_refused_at_once(programs: Programs, nodes: Nodes) -> None:
    run = job(programs, nodes, "-o", "worker_gpus=1", str(MNIST))
    assert run.wait() == 2, run.output
    assert "no Ray node can ever run worker:0, which needs 1 CPU, 1 GPU" in run.stderr
    assert f"{nodes.network}.2 has 2 CPU" in run.stderr
    nodes.expect_nothing_left()


PS, WORKER = Task("ps", 0), Task("worker", 0)
NODES = {"10.0.0.1 a": {"CPU": 4.0}, "10.0.0.2 b": {"CPU": 2.0, "GPU": 1.0}}


def test_what_together_is_too_much_is_refused() -> None:
    check_possible({PS: {"CPU": 4.0}, WORKER: {"CPU": 2.0, "GPU": 1.0}}, NODES)
    with pytest.raises(YourError, match=r"2 tasks need 7 CPU in all, and the Ray cluster has 6: 10.0.0.1 has 4 CPU"):
        check_possible({PS: {"CPU": 4.0}, WORKER: {"CPU": 3.0}}, NODES)
    with pytest.raises(YourError, match=r"worker:0, which needs 2 GPU: 10.0.0.1 has 4 CPU; 10.0.0.2 has 2 CPU, 1 GPU"):
        check_possible({WORKER: {"GPU": 2.0}}, NODES)


def test_resources_are_names_and_numbers() -> None:
    assert read_resources("TPU=4,fast=0.5", "worker_resources") == {"TPU": 4.0, "fast": 0.5}
    for text, message in (("TPU", "'TPU' is invalid"), ("a=-1", "'a=-1'"), ("GPU=1", "worker_gpus")):
        with pytest.raises(ClusterError, match=message):
            read_resources(text, "worker_resources")


def test_a_missing_ray_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: None)  # noqa: ARG005 - as find_spec has it
    with pytest.raises(YourError, match=r"pip install 'trainband\[ray\]'"):
        Ray().prepare(JobRequest(program=["train.py"], environment={}), Watcher())


@needs_ray
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "CLOSE"}, "strategy must be one of"),
        ({"worker_cpus": -1.0}, "worker_cpus must be 0 or more"),
        ({"runtime_env": "{]"}, "runtime_env is not JSON"),
        ({"runtime_env": "nowhere.json"}, "'nowhere.json' cannot be read"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Ray(**options).prepare(JobRequest(program=["train.py"], environment={}), Watcher())  # type: ignore[arg-type]


@needs_ray
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:9", "no Ray cluster answers at 127.0.0.1:9"),
        ("ray://127.0.0.1:10001", "ray job submit"),
    ],
)
def test_an_address_without_a_cluster_is_refused_at_once(programs: Programs, address: str, message: str) -> None:
    run = programs.trainband("run", "--on", "ray", "-o", f"address={address}", str(MNIST))
    assert run.wait() == 2, run.output
    assert message in run.stderr
