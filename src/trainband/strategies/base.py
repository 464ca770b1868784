"""What every strategy is: a way for replicas of one model to cooperate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from trainband.cluster import Cluster
from trainband.errors import ModelError
from trainband.model.model import Model
from trainband.model.optimizer import Optimizer
from trainband.model.variables import PyTree
from trainband.ps.worker.checkpointing import RestoreFrom
from trainband.spmd.report import FINISHED as FINISHED
from trainband.spmd.report import USED_UP as USED_UP
from trainband.spmd.report import Progress as Progress
from trainband.spmd.report import StepReport as StepReport
from trainband.spmd.report import WorkerRow as WorkerRow
from trainband.strategies.description import Description
from trainband.strategies.engine import Engine


class Strategy(Protocol):
    """How replicas of a model cooperate. One strategy a file."""

    @property
    def serves(self) -> bool:
        """Whether this task only serves others (a ps) and never trains."""
        ...

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, and which of its tasks this is; `None` for a process that stands alone."""
        ...

    @property
    def is_chief(self) -> bool:
        """Whether this task is the one that speaks for the job, by the cluster's plan."""
        ...

    @property
    def num_replicas(self) -> int:
        """How many devices, over all tasks, compute gradients of batches of their own."""
        ...

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """The axes of the mesh on which a step is computed."""
        ...

    @property
    def remainder(self) -> str:
        """What becomes of a batch whose examples the devices of a task do not divide, see `Mirrored`."""
        ...

    @property
    def gradients_per_update(self) -> int:
        """How many workers' gradients make one update: all of those in step; one, where each counts by itself."""
        ...

    def global_batch(self, batch: PyTree) -> PyTree:
        """How large the batch of a step is, if each replica's is of `batch` examples; or, of a batch of this task's,
        the arrays as they lie on the devices of all.
        """
        ...

    def describe(self, params: PyTree, optimizer: Optimizer | None = None) -> Description:
        """Prints which variable lies where and the bytes on each device or ps, and returns it.

        Args:
          params: arrays or `jax.ShapeDtypeStruct`s, such as `jax.eval_shape(init, key)` gives: nothing is allocated.
          optimizer: counts its state in.
        """
        ...

    def start(self, model: Model, restore: RestoreFrom | None = None) -> Engine:
        """Takes this process into the job, which begins from what `restore` has, if it has not begun yet."""
        ...

    def serve(self, checkpoint_dirs: Sequence[Path] = ()) -> str:
        """Serves until the job ends; returns why it did. Only where `serves`.

        Args:
          checkpoint_dirs: where the program's checkpoints are, beside the directories of a `Server` that is told
            nothing.
        """
        ...


def checked(strategy: Any) -> Strategy:
    """The strategy that somebody gives.

    Raises:
      ModelError: it is none.
    """
    if isinstance(strategy, type):
        raise ModelError(f"strategy must be a strategy, such as {strategy.__name__}(), got the class: call it.")
    if not hasattr(strategy, "start") or not hasattr(strategy, "mesh_axes"):
        raise ModelError(f"strategy must be a strategy, such as trainband.Mirrored(), got {strategy!r}.")
    found: Strategy = strategy
    return found
