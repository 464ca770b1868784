"""trainband trains one JAX model on whatever machines you have. These are its public names.

They are loaded when first used, so that `import trainband` costs nothing: a launcher does not wait for JAX.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainband.version import VERSION

if TYPE_CHECKING:
    from trainband import cluster as cluster
    from trainband import compat as compat
    from trainband import compress as compress
    from trainband import data as data
    from trainband import errors as errors
    from trainband import export as export
    from trainband import keras as keras
    from trainband import rows as rows
    from trainband import serve as serve
    from trainband.checkpoint import Retention as Retention
    from trainband.cluster import Cluster as Cluster
    from trainband.cluster import ClusterSpec as ClusterSpec
    from trainband.cluster import Task as Task
    from trainband.errors import TrainbandError as TrainbandError
    from trainband.model.placement import GreedyBytes as GreedyBytes
    from trainband.model.placement import RoundRobin as RoundRobin
    from trainband.model.predictor import Predictor as Predictor
    from trainband.monitor.history import history as history
    from trainband.ps.flight_client import flight_client as flight_client
    from trainband.ps.program.limits import ProgramLimits as ProgramLimits
    from trainband.ps.rules import Async as Async
    from trainband.ps.rules import Bounded as Bounded
    from trainband.ps.rules import Sync as Sync
    from trainband.ps.server import Server as Server
    from trainband.rows import Table as Table
    from trainband.strategies import Mirrored as Mirrored
    from trainband.strategies import ModelParallel as ModelParallel
    from trainband.strategies import MultiWorkerMirrored as MultiWorkerMirrored
    from trainband.strategies import OneDevice as OneDevice
    from trainband.strategies import ParameterServer as ParameterServer
    from trainband.strategies import WireDtype as WireDtype
    from trainband.strategies import auto_fsdp as auto_fsdp
    from trainband.train import CheckpointSaverHook as CheckpointSaverHook
    from trainband.train import EarlyStopping as EarlyStopping
    from trainband.train import Evaluation as Evaluation
    from trainband.train import FinalOpsHook as FinalOpsHook
    from trainband.train import FitResult as FitResult
    from trainband.train import Hook as Hook
    from trainband.train import LoggingHook as LoggingHook
    from trainband.train import MonitoredSession as MonitoredSession
    from trainband.train import NanHook as NanHook
    from trainband.train import ProfilerHook as ProfilerHook
    from trainband.train import StepCounterHook as StepCounterHook
    from trainband.train import StepProfileHook as StepProfileHook
    from trainband.train import StopAtStepHook as StopAtStepHook
    from trainband.train import SummarySaverHook as SummarySaverHook
    from trainband.train import TrackerHook as TrackerHook
    from trainband.train import Trainer as Trainer
    from trainband.train import ValidationHook as ValidationHook
    from trainband.wire.flight import ConnectionLimits as ConnectionLimits
    from trainband.wire.network import Network as Network
    from trainband.wire.transport import Timeouts as Timeouts

__version__ = VERSION

_HOMES = {
    "Async": "ps.rules",
    "Bounded": "ps.rules",
    "CheckpointSaverHook": "train",
    "Cluster": "cluster",
    "ClusterSpec": "cluster",
    "ConnectionLimits": "wire.flight",
    "EarlyStopping": "train",
    "Evaluation": "train",
    "FinalOpsHook": "train",
    "FitResult": "train",
    "GreedyBytes": "model.placement",
    "Hook": "train",
    "LoggingHook": "train",
    "Mirrored": "strategies",
    "ModelParallel": "strategies",
    "MonitoredSession": "train",
    "MultiWorkerMirrored": "strategies",
    "NanHook": "train",
    "Network": "wire.network",
    "OneDevice": "strategies",
    "ParameterServer": "strategies",
    "Predictor": "model.predictor",
    "ProfilerHook": "train",
    "ProgramLimits": "ps.program.limits",
    "Retention": "checkpoint",
    "RoundRobin": "model.placement",
    "Server": "ps.server",
    "StepCounterHook": "train",
    "StepProfileHook": "train",
    "StopAtStepHook": "train",
    "SummarySaverHook": "train",
    "Sync": "ps.rules",
    "Table": "rows",
    "Task": "cluster",
    "Timeouts": "wire.transport",
    "TrackerHook": "train",
    "TrainbandError": "errors",
    "Trainer": "train",
    "ValidationHook": "train",
    "WireDtype": "strategies",
    "auto_fsdp": "strategies",
    "flight_client": "ps.flight_client",
    "history": "monitor.history",
}
_MODULES = ("cluster", "data", "errors", "rows")
_FRONT_ENDS = ("compat", "compress", "export", "keras", "serve")
"""Front ends that need optional packages; `from trainband import *` leaves them out."""

__all__ = ["__version__", *_MODULES, *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES or name in _MODULES or name in _FRONT_ENDS:
        _follow_environment()
    if name in _HOMES:
        return getattr(import_module(f"trainband.{_HOMES[name]}"), name)
    if name in _MODULES or name in _FRONT_ENDS:
        return import_module(f"trainband.{name}")
    raise AttributeError(f"module 'trainband' has no attribute {name!r}")


@cache
def _follow_environment() -> None:
    """Prints the log, and ends a task with its exit codes, where the environment asks for it: at the first use."""
    import_module("trainband.cluster.resolvers.log_level").follow_environment()
    import_module("trainband.cluster.resolvers").exit_by_kind_of_error_in_a_task()


def __dir__() -> list[str]:
    return sorted(__all__)
