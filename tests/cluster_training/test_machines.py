"""A job on several machines: nothing but the network is shared."""

from __future__ import annotations

import json
from pathlib import Path

from tests.machines import Machines
from tests.programs import Programs

from trainband.cluster.transport_choice import TRUSTED_FABRIC
from trainband.ps.membership.job_end import LINGER_S


def test_a_job_on_three_machines(programs: Programs, machines: Machines, tmp_path: Path) -> None:
    programs.environ[TRUSTED_FABRIC] = "1"  # nothing else reaches it
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
        "worker:0": "ucx: tcp",
        "worker:1": "ucx: tcp",
    }
    kept.unlink()
    for task in tasks.values():
        task.succeed()


def test_a_worker_whose_cable_is_pulled(programs: Programs, machines: Machines, tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = "--wait=lease_s=1,heartbeat_s=0.2,stall_s=3,call_s=2,connect_s=2,grace_s=1"
    tasks = programs.cluster(
        waits,
        "--train_steps=2000",
        f"--go={go}",
        ps=machines.addresses[:1],
        workers=machines.addresses[1:],
        machines=machines.names,
    )
    for name in ("worker:0", "worker:1"):
        tasks[name].wait_for("^training$")
    machines.unplug(2)
    tasks["ps:0"].wait_for(r"^trainband: worker:1 is gone: no heartbeat for 1 s$", 40.0)
    go.touch()
    assert "worker:0 is done at global step 2000" in tasks["worker:0"].succeed()
    tasks["ps:0"].succeed(LINGER_S + 40.0)
    tasks["worker:1"].fail(rf"^error: .*{machines.addresses[0]}", 60.0)
