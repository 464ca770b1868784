"""Trackers: what the hook hands to them, and the adapters against played libraries.

The played ones take what the public functions of mlflow 3.17 and wandb 0.31 take, with which the adapters were tried.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.train.fakes import ONES, Failing, lines_with, mean_model

import trainband
from trainband.errors import YourError
from trainband.monitor.trackers import MLflowTracker, Tracker, WandbTracker


class Noting(Tracker):
    """Notes what it is called for; raises in one of its methods."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = fails

    def _record(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] == self.fails:
            raise OSError("disk full")

    def start(self, config: Mapping[str, object]) -> None:
        self._record("start", dict(config))

    def log(self, metrics: Mapping[str, float], global_step: int) -> None:
        self._record("log", global_step, dict(metrics))

    def add_artifact(self, path: Path) -> None:
        self._record("artifact", path.name)

    def finish(self, *, failed: bool) -> None:
        self._record("finish", failed)


def fit(*hooks: Any, said: list[str], **more: Any) -> None:
    mean_model(say=said.append).fit([ONES], 6, hooks=hooks, **more)


@pytest.mark.smoke
def test_what_a_tracker_is_handed(tmp_path: Path) -> None:
    (tmp_path / "plot.png").write_bytes(b"")
    tracker, said = Noting(), list[str]()
    hook = trainband.TrackerHook(
        tracker,
        config={"learning_rate": 0.5},
        every_steps=2,
        artifacts=[tmp_path / "plot.png", tmp_path / "not there"],
        clock=iter([float(i) for i in range(99)]).__next__,
    )
    fit(hook, said=said, validation=[ONES], every=3)
    (_, config), *logged = tracker.calls
    assert config == {
        "trainband": trainband.__version__,
        "strategy": "OneDevice",
        "task": "local",
        "began_at_global_step": 0,
        "learning_rate": 0.5,
    }
    points = {step: values for kind, step, *rest in logged if kind == "log" for values in rest if "loss" in values}
    assert list(points) == [1, 2, 4, 6]
    assert points[4].keys() == {"loss", "largest", "steps_per_second"}
    assert points[4]["steps_per_second"] == 1.0
    # The validations follow the steps that they were made after.
    validated = [call for call in logged if call[0] == "log" and "validation/loss" in call[2]]
    assert [(step, set(values)) for _, step, values in validated] == [
        (3, {"validation/loss", "validation/largest"}),
        (6, {"validation/loss", "validation/largest"}),
    ]
    assert logged[-2:] == [("artifact", "plot.png"), ("finish", False)]
    assert lines_with(said, "not there does not exist")


def test_a_training_that_fails() -> None:
    tracker, said = Noting(), list[str]()
    with pytest.raises(ZeroDivisionError):
        fit(trainband.TrackerHook(tracker), Failing(ZeroDivisionError(), "after_run"), said=said)
    assert tracker.calls[-1] == ("finish", True)


@pytest.mark.parametrize("fails", ["log", "finish"])
def test_a_tracker_that_fails_stops_no_training(fails: str) -> None:
    tracker, said = Noting(fails), list[str]()
    fit(trainband.TrackerHook(tracker, every_steps=1), said=said)
    (line,) = lines_with(said, "WARNING: Noting could not")
    assert line.endswith("training continues without it. OSError: disk full")
    assert [call[0] for call in tracker.calls].count(fails) == 1


def test_bad_input() -> None:
    with pytest.raises(YourError, match="tracker must be a tracker, such as MLflowTracker"):
        trainband.TrackerHook(Noting)  # type: ignore[arg-type]
    with pytest.raises(YourError, match="mode must be offline or online, got 'disabled'"):
        WandbTracker(mode="disabled")
    with pytest.raises(YourError, match="give a directory for local files or a tracking_uri, not both"):
        MLflowTracker(directory="a", tracking_uri="sqlite:///b")


@pytest.mark.parametrize(
    ("library", "kind", "command"),
    [
        ("mlflow", MLflowTracker, "pip install mlflow-skinny sqlalchemy alembic"),
        ("wandb", WandbTracker, "pip install wandb"),
    ],
)
def test_a_library_that_is_missing(library: str, kind: Any, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(YourError, match=command):
        kind()


class PlayedMlflow(ModuleType):
    """Of mlflow 3.17, what the adapter calls."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[tuple[Any, ...]] = []
        calls = self.calls

        class Metric:
            def __init__(self, key: str, value: float, timestamp: int, step: int) -> None:
                assert timestamp > 1e12, "milliseconds"
                self.given = key, value, step

        class Param:
            def __init__(self, key: str, value: str) -> None:
                assert isinstance(value, str)
                self.given = key, value

        class MlflowClient:
            def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
                del registry_uri
                calls.append(("client", tracking_uri))

            def get_experiment_by_name(self, name: str) -> Any:
                return None if name == "new" else SimpleNamespace(experiment_id="7")

            def create_experiment(
                self, name: str, artifact_location: str | None = None, tags: dict[str, Any] | None = None
            ) -> str:
                del tags
                calls.append(("experiment", name, artifact_location))
                return "8"

            def create_run(
                self,
                experiment_id: str,
                start_time: int | None = None,
                tags: dict[str, Any] | None = None,
                run_name: str | None = None,
            ) -> Any:
                del start_time
                calls.append(("run", experiment_id, tags, run_name))
                return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

            def log_batch(
                self,
                run_id: str,
                metrics: Sequence[Metric] = (),
                params: Sequence[Param] = (),
                tags: Sequence[Any] = (),
            ) -> None:
                del tags
                calls.append(("batch", run_id, [one.given for one in metrics], [one.given for one in params]))

            def log_artifact(self, run_id: str, local_path: str, artifact_path: str | None = None) -> None:
                calls.append(("file", run_id, Path(local_path).name, artifact_path))

            def log_artifacts(self, run_id: str, local_dir: str, artifact_path: str | None = None) -> None:
                calls.append(("folder", run_id, Path(local_dir).name, artifact_path))

            def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
                del end_time
                calls.append(("end", run_id, status))

        self.MlflowClient = MlflowClient
        self.entities = SimpleNamespace(Metric=Metric, Param=Param)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = PlayedMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    (tmp_path / "file").write_text("")
    tracker = MLflowTracker("new", directory=tmp_path / "ml", run_name="first", tags={"a": "b"})
    tracker.start({"rate": 0.5, "<script>": None})
    tracker.log({"loss": 1.0, "validation/loss": 2.0, "worker:1": 3.0, "no number": float("nan")}, 40)
    tracker.log({"loss": float("inf")}, 41)
    tracker.add_artifact(tmp_path / "file")
    tracker.add_artifact(tmp_path / "ml")
    tracker.finish(failed=True)
    assert mlflow.calls == [
        ("client", f"sqlite:///{tmp_path}/ml/mlflow.db"),
        ("experiment", "new", (tmp_path / "ml" / "artifacts").as_uri()),
        ("run", "8", {"a": "b"}, "first"),
        ("batch", "r1", [], [("rate", "0.5"), ("_script_", "None")]),
        ("batch", "r1", [("loss", 1.0, 40), ("validation/loss", 2.0, 40), ("worker_1", 3.0, 40)], []),
        ("file", "r1", "file", None),
        ("folder", "r1", "ml", "ml"),
        ("end", "r1", "FAILED"),
    ]
    mlflow.calls.clear()
    MLflowTracker("known", tracking_uri="http://127.0.0.1:5000").start({})
    assert mlflow.calls[:2] == [("client", "http://127.0.0.1:5000"), ("run", "7", {}, None)]


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    class Artifact:
        def __init__(self, name: str, type: str) -> None:  # noqa: A002 - as wandb names it
            self.given = [name, type]

        def add_file(self, local_path: str, name: str | None = None) -> None:
            self.given += ["file", Path(local_path).name, str(name)]

        def add_dir(self, local_path: str, name: str | None = None) -> None:
            self.given += ["dir", Path(local_path).name, str(name)]

    class Run:
        def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
            calls.append(("log", data, step, commit))

        def log_artifact(self, artifact_or_path: Artifact, name: str | None = None, type: str | None = None) -> None:  # noqa: A002
            calls.append(("artifact", artifact_or_path.given, name, type))

        def finish(self, exit_code: int | None = None) -> None:
            calls.append(("finish", exit_code))

    def init(
        *,
        project: str | None = None,
        dir: str | None = None,  # noqa: A002
        name: str | None = None,
        tags: Sequence[str] | None = None,
        config: dict[str, Any] | None = None,
        mode: str | None = None,
    ) -> Run:
        calls.append(("init", project, dir, name, tags, config, mode))
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Artifact=Artifact))
    (tmp_path / "a file").write_text("")
    tracker = WandbTracker("digits", directory=tmp_path / "w", settings={"tags": ["a"]})
    tracker.start({"rate": 0.5})
    tracker.log({"loss": 1.0}, 40)
    tracker.add_artifact(tmp_path / "a file")
    tracker.add_artifact(tmp_path / "w")
    tracker.finish(failed=False)
    assert calls == [
        ("init", "digits", str(tmp_path / "w"), None, ["a"], {"rate": 0.5}, "offline"),
        ("log", {"loss": 1.0}, 40, None),
        ("artifact", ["a_file", "training", "file", "a file", "None"], None, None),
        ("artifact", ["w", "training", "dir", "w", "None"], None, None),
        ("finish", 0),
    ]


def test_the_adapters_are_trackers() -> None:
    for name in ("start", "log", "add_artifact", "finish"):
        wanted = inspect.signature(getattr(Tracker, name))
        assert inspect.signature(getattr(MLflowTracker, name)) == wanted
        assert inspect.signature(getattr(WandbTracker, name)) == wanted
