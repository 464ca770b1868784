"""Jobs whose tasks are started one by one, as on several machines, and what can be seen from outside meanwhile."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.programs import MNIST, Programs


def test_the_example_task_by_task(programs: Programs, ports: tuple[str, ...]) -> None:
    tasks = programs.cluster("--train_steps=300", ps=ports[:1], workers=ports[1:3], script=MNIST)
    outputs = {name: task.succeed() for name, task in tasks.items()}
    assert re.search(r"^held out: .* at global step 300$", outputs["worker:0"], re.M)
    assert "held out" not in outputs["worker:1"]
    assert outputs["ps:0"] == ""


@pytest.mark.parametrize(("flags", "via"), [([], "shared memory"), (["--transport=flight"], "flight")])
def test_the_status_of_a_job(
    flags: list[str], via: str, programs: Programs, ports: tuple[str, ...], tmp_path: Path
) -> None:
    """Exactly as many updates as were asked for, and how the bytes have travelled."""
    kept = tmp_path / "params.npz"
    flags = [*flags, f"--params={kept}", "--train_steps=200"]
    tasks = programs.cluster(*flags, ps=ports[:1], workers=ports[1:3])
    tasks["worker:0"].wait_for("^kept$")
    tasks["worker:1"].wait_for("^kept$")

    answer = json.loads(programs.trainband("status", "--json", ports[0]).succeed())
    assert (answer["task"], answer["version"], answer["last_version"]) == ("ps:0", 200, 200)
    workers = {worker["task"]: worker for worker in answer["workers"]}
    assert sorted(workers) == ["worker:0", "worker:1"]
    assert {(worker["presence"], worker["transport"]) for worker in workers.values()} == {("live", via)}
    assert {name: worker["pid"] for name, worker in workers.items()} == {name: tasks[name].pid for name in workers}
    assert sum(worker["pushes"] - worker["dropped"] for worker in workers.values()) == 200
    assert {variable["name"] for variable in answer["variables"]} == {"kernel", "bias"}

    kept.unlink()
    for task in tasks.values():
        task.succeed()


def test_status_while_it_trains(programs: Programs, ports: tuple[str, ...]) -> None:
    tasks = programs.cluster("--train_steps=1000000", "--pause_s=0.002", ps=ports[:1], workers=ports[1:2])
    tasks["worker:0"].wait_for("^training$")
    answer = json.loads(programs.trainband("status", "--json", ports[0]).succeed())
    assert answer["version"] > 0
    assert answer["last_version"] == 1_000_000
    assert answer["rate"] > 0
    assert answer["bytes_in"] >= answer["version"] * answer["shard_bytes"]
    shown = programs.trainband("status", ports[0]).succeed()
    for words in ("global step", "steps/s", "staleness median", "worker:0", "float32[8,3]", "shared"):
        assert words in shown
    tasks["worker:0"].interrupt()
    assert tasks["worker:0"].wait() == 130
    tasks["ps:0"].wait_for("worker:0 left the job: Ctrl-C asked this task to end")
    tasks["ps:0"].interrupt()
    assert tasks["ps:0"].wait() == 130
