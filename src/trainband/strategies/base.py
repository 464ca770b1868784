"""Strategy: a way for replicas of one model to cooperate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trainband.cluster import Cluster
from trainband.errors import ModelError
from trainband.job.checkpoints import RestoreFrom
from trainband.job.engine import Engine
from trainband.job.reports import FINISHED as FINISHED
from trainband.job.reports import USED_UP as USED_UP
from trainband.job.reports import Progress as Progress
from trainband.job.reports import StepReport as StepReport
from trainband.job.reports import WorkerRow as WorkerRow
from trainband.model.model import Model
from trainband.model.optimizer import Optimizer
from trainband.model.tables import Features, Tables
from trainband.model.variables import PyTree
from trainband.strategies.description import Description


class Strategy(Protocol):
    """How replicas of a model cooperate. One strategy a file."""

    @property
    def serves(self) -> bool:
        """Whether this task only serves others (a ps) and never trains."""
        ...

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, and which of its tasks this is; `None` for a process that runs alone."""
        ...

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief by the cluster's plan."""
        ...

    @property
    def num_replicas(self) -> int:
        """Number of devices, over all tasks, that compute gradients of their own batches."""
        ...

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """The axes of the mesh that computes a step."""
        ...

    @property
    def has_tables(self) -> bool:
        """Whether a model may have tables."""
        ...

    @property
    def remainder(self) -> str:
        """How a batch is handled whose examples do not divide evenly among a task's devices, see `Mirrored`."""
        ...

    @property
    def gradients_per_update(self) -> int:
        """Workers' gradients in one update: all of them if they compute in lockstep; one if each counts by itself."""
        ...

    def global_batch(self, batch: PyTree) -> PyTree:
        """Returns the batch size of a step if each replica's batch has `batch` examples; or, for a batch of this task,
        the arrays as they are placed on the devices of all.
        """
        ...

    def describe(self, params: PyTree, optimizer: Optimizer | None = None) -> Description:
        """Prints where each variable is stored and the bytes on each device or ps, and returns it.

        Args:
          params: arrays or `jax.ShapeDtypeStruct`s, such as `jax.eval_shape(init, key)` returns: nothing is allocated.
          optimizer: its state is included.
        """
        ...

    def start(self, model: Model, restore: RestoreFrom | None = None) -> Engine:
        """Joins the job, which starts from `restore` unless it has started already."""
        ...

    def serve(self, checkpoint_dirs: Sequence[Path] = ()) -> str:
        """Serves until the job ends; returns why it ended. Only if `serves`.

        Args:
          checkpoint_dirs: the program's checkpoints, in addition to those that a `Server` finds by itself.
        """
        ...


def checked(strategy: Any) -> Strategy:
    """Returns the given strategy.

    Raises:
      ModelError: it is not a strategy.
    """
    if isinstance(strategy, type):
        raise ModelError(f"strategy must be a strategy, such as {strategy.__name__}(), got the class; call it.")
    if not hasattr(strategy, "start") or not hasattr(strategy, "mesh_axes"):
        raise ModelError(f"strategy must be a strategy, such as trainband.Mirrored(), got {strategy!r}.")
    found: Strategy = strategy
    return found


def tables_of(features: Features | None, strategy: Strategy) -> Tables | None:
    """Returns a model's tables; `None` without any.

    Raises:
      ModelError: they are invalid, or this strategy has no place for them.
    """
    if not features:
        return None
    if not strategy.has_tables:
        raise ModelError(
            f"tables: {type(strategy).__name__} has no parameter servers here, which hold the rows of tables; use "
            "ParameterServer in a cluster that has at least one ps, as trainband run --ps 1 starts it."
        )
    if not isinstance(features, Mapping):
        raise ModelError(f"tables must be a dict of pairs by name, got {type(features).__name__}.")
    return Tables(features)
