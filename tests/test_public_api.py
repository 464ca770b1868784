"""The public names: exactly these."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import trainband

PUBLIC = [
    "Async",
    "Bounded",
    "CheckpointSaverHook",
    "Cluster",
    "ClusterSpec",
    "ConnectionLimits",
    "EarlyStopping",
    "Evaluation",
    "FinalOpsHook",
    "FitResult",
    "GreedyBytes",
    "Hook",
    "LoggingHook",
    "Mirrored",
    "ModelParallel",
    "MonitoredSession",
    "MultiWorkerMirrored",
    "NanHook",
    "Network",
    "OneDevice",
    "ParameterServer",
    "Predictor",
    "ProfilerHook",
    "ProgramLimits",
    "Retention",
    "RoundRobin",
    "Server",
    "StepCounterHook",
    "StepProfileHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "Sync",
    "Table",
    "Task",
    "Timeouts",
    "TrackerHook",
    "TrainbandError",
    "Trainer",
    "ValidationHook",
    "WireDtype",
    "__version__",
    "auto_fsdp",
    "cluster",
    "data",
    "errors",
    "flight_client",
    "history",
    "rows",
]


def test_these_and_no_others() -> None:
    assert sorted(trainband.__all__) == PUBLIC
    assert dir(trainband) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_is_there(name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from trainband import {name}", namespace)
    assert namespace[name] is getattr(trainband, name)


def test_others_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'trainband' has no attribute 'Nonsense'"):
        _ = trainband.Nonsense
    with pytest.raises(ImportError):
        exec("from trainband import Nonsense", {})


def test_what_a_type_checker_sees_is_what_is_loaded() -> None:
    tree = ast.parse(Path(trainband.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "a public name is exported as itself"
            seen[alias.name] = str(node.module)
    homes: dict[str, str] = {name: f"trainband.{home}" for name, home in trainband._HOMES.items()}  # noqa: SLF001
    homes |= dict.fromkeys((*trainband._MODULES, *trainband._FRONT_ENDS), "trainband")  # noqa: SLF001
    assert seen == homes


@pytest.mark.parametrize("name", sorted(trainband._HOMES))  # noqa: SLF001
def test_each_has_documentation(name: str) -> None:
    loaded = getattr(import_module(f"trainband.{trainband._HOMES[name]}"), name)  # noqa: SLF001
    assert loaded.__doc__
    assert not loaded.__doc__.startswith(f"{name}(")  # dataclass's own
