"""Real jobs as pods of Kubernetes: what the manifest says is run, as processes of this machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.kubelet import ROOT, Kubelet
from tests.kubernetes_cluster import FakeCluster, serving

from trainband.checkpoint.directory import CheckpointDirectory
from trainband.launch.backend import Watcher
from trainband.launch.backends.kubernetes import Kubernetes
from trainband.launch.kubernetes.manifest import Kind
from trainband.launch.request import JobRequest

SCRIPT = str(ROOT / "examples" / "mnist.py")


@pytest.mark.limit(240)
@pytest.mark.parametrize("kind", ["jobset", pytest.param("job", marks=pytest.mark.slow)])
def test_a_job_trains(kind: Kind, tmp_path: Path) -> None:
    cluster = FakeCluster(Kubelet(tmp_path).run)
    lines: list[str] = []
    notes: list[str] = []
    with serving(cluster, tmp_path) as config:
        request = JobRequest(program=[SCRIPT, "--train_steps", "40"], environment={"KUBECONFIG": str(config)})
        backend = Kubernetes(image="i", name="digits", kind=kind, poll_s=0.1)
        with backend.prepare(request, Watcher(line=lambda *line: lines.append(str(line)), report=notes.append)) as run:
            assert run.wait(200).kind == "succeeded", (lines, notes)
        assert cluster.left() == []
    assert any("at global step 40" in line for line in lines), lines
    assert any("ps:0 ends: the job is complete" in line for line in lines), lines


@pytest.mark.slow
@pytest.mark.limit(240)
def test_an_interrupted_job_saves(tmp_path: Path) -> None:
    cluster = FakeCluster(Kubelet(tmp_path).run)
    lines: list[str] = []

    def line(_task: object, _stream: str, text: str) -> None:
        lines.append(text)
        if text == "training":
            os.kill(os.getpid(), signal.SIGTERM)

    with serving(cluster, tmp_path) as config:
        script = str(ROOT / "tests" / "resumable.py")
        program = [script, "--steps", "100000", "--save_steps", "50000", "--step_s", "0.05", "--dir", "/checkpoints"]
        request = JobRequest(program=program, environment={"KUBECONFIG": str(config)}, workers=1)
        backend = Kubernetes(image="i", name="digits", checkpoints="claim", poll_s=0.1)
        with backend.prepare(request, Watcher(line=line)) as run:
            outcome = run.wait(200)
        assert (outcome.kind, outcome.exit_code) == ("interrupted", 128 + signal.SIGTERM)
        assert cluster.left() == []
    assert CheckpointDirectory(tmp_path / "checkpoints", lines.append).steps()[-1:] > [0], lines
