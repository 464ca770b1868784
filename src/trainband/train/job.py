"""Job: one task's part in the job that a trainer trains, over all the sessions of a script."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from trainband.cluster import Cluster
from trainband.cluster.task_metrics import serve_metrics
from trainband.errors import TrainbandError
from trainband.model.mesh_context import require_no_mesh
from trainband.model.model import Model
from trainband.monitor.prometheus import worker_families
from trainband.ps.worker.checkpointing import RestoreFrom
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.logs import note_position
from trainband.runtime.waiting import Say
from trainband.strategies.base import Strategy
from trainband.strategies.engine import Engine
from trainband.train.standalone import require_cluster, users_line
from trainband.train.trainings import Trainings


class Job:
    """What outlives the sessions of a trainer: the engine, the trainings so far, and what a session leaves to the next.

    Args:
      strategy: how the job trains.
      model: what it trains.
      say: where lines for people go.
    """

    def __init__(self, strategy: Strategy, model: Model, say: Say) -> None:
        self.strategy = strategy
        """How the job trains."""
        self.say = say
        """Where lines for people go."""
        self.runtime: Runtime = getattr(strategy, "runtime", SYSTEM)
        """What this task gets from its machine."""
        self.trainings = Trainings()
        """The trainings of the script so far."""
        self.had_duties: bool | None = None
        """Whether this task had the chief's duties when a session last looked; `None` before the first look."""
        self.request = ""
        """The request to end (see `trainband.runtime.signals`) that came at a training's end; empty without one."""
        self._model = model
        self._made_at = users_line()
        self._engine: Engine | None = None
        self._restore: RestoreFrom | None = None
        self._checkpoint_dirs: list[Path] = []
        self._shown: list[Callable[[], None]] = []
        """What takes this task away again from where it is shown."""

    @cached_property
    def token(self) -> str:
        """Random: tells this task's part in the job from all others where the job has no id."""
        return self.runtime.token()

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, and which of its tasks this is; `None` for a process that stands alone."""
        return self.strategy.cluster

    @property
    def strategy_name(self) -> str:
        """The strategy's name."""
        return type(self.strategy).__name__

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief; before it joins, whether the cluster's plan makes it the chief."""
        if self._engine is not None:
            return self._engine.is_chief
        return self.cluster is None or self.cluster.is_chief

    @property
    def id(self) -> str:
        """The job's id; empty before this task joins, and where there is nobody to share it with."""
        return self._engine.job if self._engine is not None else ""

    def note_checkpoint_dir(self, directory: Path) -> None:
        """Says where the program reads or writes checkpoints: a ps that is not told refuses to."""
        if directory not in self._checkpoint_dirs:
            self._checkpoint_dirs.append(directory)

    def begin_from(self, restore: RestoreFrom) -> None:
        """Has the job begin from these checkpoints, unless it resumes from one of its session's directory.

        Raises:
          TrainbandError: this task has joined its job already.
        """
        if self._engine is not None:
            raise TrainbandError(
                f"restore: {self._engine.task} has joined its job already, which has its params; call restore before "
                "fit, evaluate, predict and params."
            )
        self._restore = restore

    def join(self, restore: RestoreFrom | None = None) -> Engine:
        """Joins the job, if this task has not yet; returns its part in it. A ps serves, and then ends its process.

        Args:
          restore: where the first values may come from, if the job has none.

        Raises:
          ModelError: the script has set a mesh by `jax.set_mesh`.
          ClusterError: this process is a task of a cluster, and the strategy knows nothing of it.
          AddressInUse, YourError: it cannot serve its metrics where it is asked to.
        """
        require_no_mesh()
        if self._engine is None:
            require_cluster(self.strategy, self._made_at)
            if self.strategy.serves:
                self.strategy.serve(tuple(self._checkpoint_dirs))
                raise SystemExit(0)
            metrics = serve_metrics(self.cluster, self.say)
            source = _either(restore, self._restore)
            with self.runtime.sigterm_raises():  # so that the others hear that this task leaves
                self._engine = engine = self.strategy.start(self._model, source)
            if engine.restored is not None:
                checkpoint = engine.restored
                if source is restore:  # else the values are those of another training
                    self.trainings.resume(checkpoint.manifest)
                self.say(f"resumes from {checkpoint.path} (global step {checkpoint.global_step:,})")
            else:
                self.trainings.learn(engine.trainings)
            self._shown.append(note_position(lambda: {"global_step": engine.global_step}))
            if metrics is not None:
                self._shown.append(metrics.add(lambda: list(worker_families(engine.statistics()))))
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
    """The first, if it has any checkpoint; else the second."""
    if first is None or second is None or any(True for _ in first.candidates()):
        return first or second
    return second
