"""Several machines: network namespaces, each with a network card of its own, joined by a switch.

Nothing but the network is shared that way: a task finds neither the loopback ports nor the shared memory of another.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.programs import Programs

PORT = 2222


@dataclass(frozen=True, slots=True)
class Machines:
    """Three machines and the switch between them."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    switch: str

    def unplug(self, index: int) -> None:
        """Pulls a machine's cable: packets vanish, and nobody is told."""
        _ip("-n", self.switch, "link", "set", f"port{index}", "down")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=10.0)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Three machines; they vanish with the test."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    switch, *names = (f"tb{os.getpid()}-{name}" for name in ("switch", "0", "1", "2"))
    made = []
    try:
        try:
            for name in (switch, *names):
                _ip("netns", "add", name)
                made.append(name)
            _ip("-n", switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", switch, "link", "set", "switch", "up")
            for i, name in enumerate(names):
                _ip("-n", switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", "card", "netns", name)
                _ip("-n", switch, "link", "set", f"port{i}", "master", "switch", "up")
                _ip("-n", name, "address", "add", f"10.77.0.{i + 1}/24", "dev", "card")
                _ip("-n", name, "link", "set", "card", "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except OSError as exc:
            pytest.skip(f"this machine does not let us make network namespaces: {exc}")
        yield Machines(tuple(names), tuple(f"10.77.0.{i + 1}:{PORT}" for i in range(3)), switch)
    finally:
        for name in made:
            _ip("netns", "delete", name)


def test_a_job_on_three_machines(programs: Programs, machines: Machines, tmp_path: Path) -> None:
    kept = tmp_path / "params.npz"
    tasks = programs.cluster(
        "--train_steps=200",
        f"--params={kept}",
        ps=machines.addresses[:1],
        workers=machines.addresses[1:],
        machines=machines.names,
    )
    for name in ("worker:0", "worker:1"):
        tasks[name].wait_for("^kept$")
    asked = programs.trainband("status", "--json", machines.addresses[0], machine=machines.names[2])
    answer = json.loads(asked.succeed())
    assert answer["version"] == 200
    assert {worker["task"]: worker["transport"] for worker in answer["workers"]} == {
        "worker:0": "flight",
        "worker:1": "flight",
    }
    kept.unlink()
    for task in tasks.values():
        task.succeed()


def test_a_worker_whose_cable_is_pulled(programs: Programs, machines: Machines) -> None:
    waits = "--wait=lease_s=1,heartbeat_s=0.2,stall_s=3,call_s=2,connect_s=2,grace_s=1"
    tasks = programs.cluster(
        waits,
        "--train_steps=600",
        "--pause_s=0.004",
        ps=machines.addresses[:1],
        workers=machines.addresses[1:],
        machines=machines.names,
    )
    for name in ("worker:0", "worker:1"):
        tasks[name].wait_for("^training$")
    machines.unplug(2)
    tasks["ps:0"].wait_for(r"^trainband: worker:1 is gone: not heard for 1 s$", 10.0)
    assert "worker:0 is done at global step 600" in tasks["worker:0"].succeed()
    tasks["ps:0"].succeed(15.0)
    tasks["worker:1"].fail(rf"^error: .*{machines.addresses[0]}", 20.0)
