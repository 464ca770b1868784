"""Where versions come from: new checkpoints as they land, exported models, and what is done with damaged ones."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.samples import flip
from tests.programs import until
from tests.serve.served import EXAMPLE, ask, program, scaled, served
from trainband.checkpoint import CheckpointDirectory, Manifest, Piece, WorkerEntry, write_part
from trainband.errors import CheckpointError, ModelMismatch, YourError
from trainband.export import export_program
from trainband.model.predictor import Predictor
from trainband.serve import ArtifactSource, CheckpointSource, InferenceServer, ServedModel, SourceState, SourceStatus

MADE_AT = 1_700_000_000.0


def commit(directory: Path, step: int, factor: Any) -> Path:
    """A checkpoint of `scaled`."""
    home = CheckpointDirectory(directory, lambda _: None)
    partial = home.create_partial(step)
    value = np.asarray(factor, np.float32)
    piece = Piece("params/factor", value.shape, "float32", 0, value.shape[0] if value.ndim else 1)
    part = write_part(partial, "ps-0.safetensors", ps=0, version=step, pieces=[(piece, value)])
    worker = {"worker:0": WorkerEntry("worker:0", 4, "{}")}
    return home.commit(partial, Manifest(step, MADE_AT, "0.1.0", "ParameterServer", (part,), worker)).path


def source(directory: Path, said: list[str]) -> CheckpointSource:
    return CheckpointSource(directory, Predictor(scaled, example=EXAMPLE), say=said.append, poll_s=0.01)


def test_a_new_checkpoint_is_served_and_a_damaged_or_foreign_one_is_passed_over(tmp_path: Path) -> None:
    commit(tmp_path, 10, 2.0)
    said: list[str] = []
    checkpoints = source(tmp_path, said)
    model = checkpoints.open()
    found = []

    def on_version(weights: Any, number: int, **about: Any) -> None:
        model.swap(weights, number, **about)
        found.append(number)

    assert (model.name, model.current.number, model.current.made_at) == ("scaled", 10, MADE_AT)
    checkpoints.poll(on_version)
    assert found == []
    commit(tmp_path, 20, 3.0)
    flip(commit(tmp_path, 30, 4.0) / "ps-0.safetensors", -1)
    checkpoints.poll(on_version)  # both were committed since: the newest that is sound
    assert found == [20]
    commit(tmp_path, 40, [1.0, 2.0])
    checkpoints.poll(on_version)
    checkpoints.poll(on_version)  # what was passed over is not looked at again
    assert found == [20]
    assert model.current.weights["params/factor"] == 3.0
    assert [line.partition(":")[0] for line in said] == [
        "step-000000000030 is not served",
        "now serving global step 20",
        "step-000000000040 is not served",
    ]
    assert "of another model: params/factor is float32[2]" in said[2]


def test_a_server_follows_a_directory(tmp_path: Path) -> None:
    commit(tmp_path, 10, 2.0)
    said: list[str] = []
    with InferenceServer(source(tmp_path, said), port=0, say=said.append) as server:
        assert server.status.state is SourceState.FOLLOWING
        commit(tmp_path, 20, 5.0)
        until(lambda: server.model.current.number == 20, "the new version")
        answer = ask(server.app, "POST", "/v1/models/scaled/versions/20:predict", json={"instances": [[1, 2]]})
    assert answer.json()["predictions"][0]["scaled"] == [5.0, 10.0]


def test_without_a_checkpoint_or_with_another_models_there_is_no_server(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        source(tmp_path, []).open()
    commit(tmp_path, 10, [1.0, 2.0])
    checked = Predictor(scaled, example=EXAMPLE, init=lambda _: {"factor": np.float32(0)})
    with pytest.raises(ModelMismatch, match=r"params/factor is float32\[2\]"):
        InferenceServer(CheckpointSource(tmp_path, checked), port=0, say=lambda _: None).__enter__()


def test_an_exported_model_is_served_without_the_users_code(tmp_path: Path) -> None:
    export_program(program(step=12), tmp_path / "out", "stablehlo")
    exported = ArtifactSource(tmp_path / "out")
    with served(exported.open()) as app:
        answer = ask(
            app,
            "POST",
            "/v2/models/scaled/infer",
            json={"inputs": [{"name": "input", "shape": [3, 2], "datatype": "FP32", "data": EXAMPLE.ravel().tolist()}]},
        ).json()
    assert answer["model_version"] == "12"
    assert answer["outputs"][1]["data"] == (EXAMPLE * 2).ravel().tolist()
    (tmp_path / "out" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(YourError, match="is not the file that was exported"):
        exported.open()


class Ending:
    """A source that fails after its first version."""

    def __init__(self) -> None:
        self.status = SourceStatus(SourceState.FOLLOWING, "all is well")
        self.fail = threading.Event()

    def open(self, name: str = "") -> ServedModel:
        return ServedModel.of(program(), name)

    def run(self, on_version: Any, stop: threading.Event) -> None:
        del on_version, stop
        assert self.fail.wait(60.0)
        raise YourError("the disk is gone")


def test_when_a_source_fails_the_last_version_is_served_and_the_health_says_so() -> None:
    failing = Ending()
    said: list[str] = []
    with InferenceServer(failing, port=0, say=said.append) as server:
        assert ask(server.app, "GET", "/v2/health/ready").json()["source"]["state"] == "following"
        failing.fail.set()
        until(lambda: bool(said), "the word")
        health = ask(server.app, "GET", "/v2/health/ready")
        assert (health.status_code, health.json()["ready"]) == (200, True)
        assert (health.json()["source"]["state"], health.json()["source"]["detail"]) == ("failed", "the disk is gone")
        assert (
            'trainband_serve_source_state{model="scaled",state="failed"} 1' in ask(server.app, "GET", "/metrics").text
        )
        answer = ask(server.app, "POST", "/v1/models/scaled:predict", json={"instances": [[1, 2]]})
        assert answer.status_code == 200
    assert said == ["no newer versions are served: the disk is gone"]
