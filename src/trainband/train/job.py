"""Job: one task's part in the job that a trainer trains, across all sessions of a script."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from trainband.cluster import Cluster
from trainband.cluster.task_metrics import serve_metrics
from trainband.errors import TrainbandError
from trainband.job.checkpoints import RestoreFrom
from trainband.job.engine import Engine
from trainband.model.mesh_context import require_no_mesh
from trainband.model.model import Model
from trainband.monitor.prometheus import worker_families
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.logs import add_position
from trainband.runtime.waiting import Say
from trainband.strategies.base import Strategy
from trainband.train.standalone import require_cluster, users_line
from trainband.train.trainings import Trainings


class Job:
    """The state that outlives a trainer's sessions: the engine, the training runs, and what each leaves to the next.

    Args:
      strategy: how the job trains.
      model: what it trains.
      say: receives lines for people.
    """

    def __init__(self, strategy: Strategy, model: Model, say: Say) -> None:
        self.strategy = strategy
        """How the job trains."""
        self.say = say
        """Receives lines for people."""
        self.runtime: Runtime = getattr(strategy, "runtime", SYSTEM)
        """This task's runtime."""
        self.trainings = Trainings()
        """The training runs of the script so far."""
        self.had_duties: bool | None = None
        """Whether this task had the chief's duties when a session last checked; `None` before the first check."""
        self.request = ""
        """The request to end (see `trainband.runtime.signals`) that came at a training run's end; empty without one."""
        self._model = model
        self._made_at = users_line()
        self._engine: Engine | None = None
        self._restore: RestoreFrom | None = None
        self._checkpoint_dirs: list[Path] = []
        self._shown: list[Callable[[], None]] = []
        """Callbacks that stop showing this task."""

    @cached_property
    def token(self) -> str:
        """A random id of this task's part in the job, for jobs without an id."""
        return self.runtime.token()

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, and which of its tasks this is; `None` for a process that runs alone."""
        return self.strategy.cluster

    @property
    def strategy_name(self) -> str:
        """The strategy's name."""
        return type(self.strategy).__name__

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief; before it joins, whether the cluster's plan makes it the chief."""
        if self._engine is not None:
            return self._engine.peers.is_chief
        return self.cluster is None or self.cluster.is_chief

    @property
    def id(self) -> str:
        """The job's id; empty before this task joins, and for a task that runs alone."""
        return self._engine.peers.job if self._engine is not None else ""

    def add_checkpoint_dir(self, directory: Path) -> None:
        """Records where the program reads or writes checkpoints: a ps refuses other directories."""
        if directory not in self._checkpoint_dirs:
            self._checkpoint_dirs.append(directory)

    def start_from(self, restore: RestoreFrom) -> None:
        """Makes the job start from these checkpoints, unless it resumes from one of its session's directory.

        Raises:
          TrainbandError: this task has already joined its job.
        """
        if self._engine is not None:
            task = self._engine.peers.task
            raise TrainbandError(
                f"restore: {task} has already joined its job, which has its params; call restore before fit, evaluate, "
                "predict and params."
            )
        self._restore = restore

    def join(self, restore: RestoreFrom | None = None) -> Engine:
        """Joins the job, if this task has not yet; returns its engine. A ps serves, and then ends its process.

        Args:
          restore: where the initial values may come from, if the job has none.

        Raises:
          ModelError: the script has set a mesh by `jax.set_mesh`.
          ClusterError: this process is a task of a cluster that the strategy does not use.
          AddressInUse, YourError: it cannot serve its metrics at the configured address.
        """
        require_no_mesh()
        if self._engine is None:
            require_cluster(self.strategy, self._made_at)
            if self.strategy.serves:
                self.strategy.serve(tuple(self._checkpoint_dirs))
                raise SystemExit(0)
            metrics = serve_metrics(self.cluster, self.say)
            source = _either(restore, self._restore)
            with self.runtime.sigterm_raises():  # so that the others learn that this task leaves
                self._engine = engine = self.strategy.start(self._model, source)
            checkpoint = engine.checkpoints.restored
            if checkpoint is not None:
                if source is restore:  # otherwise the values are those of another training run
                    self.trainings.resume(checkpoint.manifest)
                self.say(f"resumes from {checkpoint.path} (global step {checkpoint.global_step:,})")
            else:
                self.trainings.learn(engine.steps.training.starts)
            self._shown.append(add_position(lambda: {"global_step": engine.steps.global_step}))
            if metrics is not None:
                self._shown.append(metrics.add(lambda: list(worker_families(engine.steps.statistics()))))
            self.runtime.at_exit(self.close)
        return self._engine

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent; done at exit if not before."""
        self.runtime.not_at_exit(self.close)
        for withdraw in self._shown:
            withdraw()
        self._shown.clear()
        if self._engine is not None:
            self._engine.close(failure)


def _either(first: RestoreFrom | None, second: RestoreFrom | None) -> RestoreFrom | None:
    """Returns the first if it has any checkpoint, else the second."""
    if first is None or second is None or any(True for _ in first.candidates()):
        return first or second
    return second
