"""What every strategy is: a way for replicas of one model to cooperate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trainband.checkpoint import Checkpoint
from trainband.cluster import Cluster
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.ps.checkpointing import RestoreFrom, SavedParts
from trainband.ps.program import Optimizer
from trainband.ps.statistics import CheckpointStatus
from trainband.ps.variables import PyTree
from trainband.strategies.description import Description
from trainband.strategies.luggage import Luggage
from trainband.strategies.model import Model

FINISHED = "the chief has ended the training"
USED_UP = "its batches are used up"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker, for the display."""

    task: str
    presence: str
    rate: float
    """Steps per second."""
    staleness: float
    loss: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is, for the display."""

    global_step: int
    last_step: int | None
    """Where this training ends; `None` while nobody knows."""
    rate: float
    """Global steps per second."""
    loss: float | None
    workers: tuple[WorkerRow, ...] = ()
    examples_rate: float = 0.0
    """Examples per second that become part of updates."""
    checkpoint: CheckpointStatus | None = None
    """The last one that has landed."""


@dataclass(slots=True)
class StepReport:
    """What one step of one replica did. To be read only: it is not frozen because that takes 2 us of every step.

    Attributes:
      loss: of the batch, a float or a scalar array still being computed.
      global_step: updates made by the whole job, after this step.
      applied: whether this step's gradient became an update. Where exchanges overlap with computing, this and
        what follows speak of the step before.
      staleness: of that update.
      done: whether the job has made all the updates that were asked for.
      refusal: why the gradient was refused as not finite; empty if it was not.
      metrics: of the batch, by name: scalar arrays, perhaps still being computed.
      luggage: where a checkpoint waits for `Replica.leave_luggage`: how many of this replica's steps came after it.
      stopped: why no further step can be made, where another task has ended the training of all.
      steps: how many steps this is the report of, where several were computed in one call; loss and metrics are those
        of the last one. 0 where the training of all had ended before: the loss may be NaN then, and there may be no
        metrics.
      losses: of each of them, in order; `None` for one step.
      known: of this replica's steps that no report has told of before, in order: the global step after each and its
        loss, where that becomes known later than the report of the step; `None` where all is said here.
    """

    loss: Any
    global_step: int
    applied: bool
    staleness: int
    done: bool
    refusal: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    luggage: int | None = None
    stopped: str = ""
    steps: int = 1
    losses: Any = None
    known: Sequence[tuple[int, float]] | None = None


class Saving(Protocol):
    """A checkpoint being written. May be used from any thread."""

    @property
    def begun_at(self) -> float | None:
        """When its step had come, by `time.monotonic`, as nearly as is known."""
        ...

    def waits(self) -> bool:
        """Whether something waits for its step, and nothing is being written now."""
        ...

    def poll(self) -> SavedParts | None:
        """What was written, once all of it is; `None` before.

        Raises:
          CheckpointError: some part could not be written.
          PeerError: a ps cannot be reached.
        """
        ...


class Replica(Protocol):
    """One process's part in a running job."""

    @property
    def task(self) -> str:
        """Its name in the cluster, or `local`."""
        ...

    @property
    def is_chief(self) -> bool:
        """Whether this one speaks for the job. That may change between any two looks, where a chief dies or comes back.

        Only who is the chief may call `finish`, `save` and `landed`; others are refused.
        """
        ...

    @property
    def job(self) -> str:
        """A random id of the running job, the same for all its tasks; empty where there is nobody to share it with."""
        ...

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this replica knows."""
        ...

    @property
    def restored(self) -> Checkpoint | None:
        """The checkpoint that the job has begun from, as far as this replica knows: the chief does."""
        ...

    @property
    def luggage(self) -> Luggage | None:
        """What this replica left in the checkpoint that it goes on from."""
        ...

    @property
    def place(self) -> Callable[[PyTree], PyTree] | None:
        """What moves a batch to the device ahead of its step; `None` where steps take it as it is."""
        ...

    @property
    def steps_per_execution(self) -> int:
        """How many steps `step` takes at once: what the model asks for, or 1 where each step is an exchange."""
        ...

    @property
    def trainings(self) -> tuple[int, ...]:
        """The global step at which each training of the script began, in a job that is under way already.

        After `begin`: with the training that was begun, on every worker.
        """
        ...

    @property
    def in_parts(self) -> bool:
        """Whether no process has all the values: what needs them is done by all at the same time."""
        ...

    @property
    def unused(self) -> int:
        """How many of this replica's last batches changed nothing, because another had ended the training."""
        ...

    def take_known(self) -> Sequence[tuple[int, float]]:
        """What has become known of steps since the last report, see `StepReport.known`; gives each once."""
        ...

    @property
    def refused(self) -> int:
        """How many of this replica's gradients were refused in the training that was begun last."""
        ...

    def begin(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:
        """Starts a training until the global step is `last_step`; returns whether any update is left to make.

        The chief's word counts; a worker that becomes the chief while it waits for that gives its own. `None`: no
        limit. `trainings`: where each of the script began, with this one.
        """
        ...

    def finish(self) -> None:
        """Chief only: ends the training under way where it is, for all."""
        ...

    def save(self, directory: Path, at: int | None) -> Saving:
        """Chief only: begins to write a checkpoint into `directory` when the global step is `at`; at once if it is.

        `None`: soon, at the next step that can be the same moment for all tasks.

        Raises:
          PeerError: a ps cannot be reached, or is still writing the one before.
        """
        ...

    def landed(self, checkpoint: CheckpointStatus) -> None:
        """Chief only: notes a checkpoint that was committed, for the display. May be called from any thread."""
        ...

    def leave_luggage(self, training: int, position: str, behind: int = 0) -> None:
        """Leaves what this replica must find again to go on from here, or from so many of its steps ago.

        `position`: of that step. See `Luggage`.
        """
        ...

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        """Asks for the next piece of a data source that the job's workers share. May be called from any thread."""
        ...

    def step(self, batch: PyTree) -> StepReport:
        """Trains on one batch; on `Several` where `steps_per_execution` is more than 1, until the training's end."""
        ...

    def missing(self) -> int:
        """Updates that were asked for and are to be made anew, because a ps has lost them since; 0 without a limit."""
        ...

    def pause(self, reason: str = "") -> str:
        """Ends this replica's part in the training under way: its batches are used up, nobody shall wait for it.

        `reason`: in words, for the others where they cannot go on without it. Then it returns why the training has
        ended for all, which may be the reason of another; else nothing.
        """
        ...

    def hasten(self) -> None:
        """From now on, this replica does not wait long for a task that is away: it is to leave. May be called by a
        signal handler.
        """
        ...

    def settle(self) -> None:
        """Sees to it that `global_step` is what was made and not what is hoped for. Where all compute in step, that is
        the outcome of all steps under way, and all know the same then.
        """
        ...

    def at_work(self) -> tuple[str, ...]:
        """The other replicas that still train."""
        ...

    def gather(self, work: Callable[[], object]) -> bool:
        """Has the chief do `work`, for which the others give their parts; whether this one gave any.

        Where the values are in parts, all tasks call this at the same time.
        """
        ...

    def end(self) -> None:
        """Ends the training's last part, in which all tasks may have to do something at the same time."""
        ...

    def assign(self, params: PyTree, state: PyTree, optimizer: PyTree) -> None:
        """Goes on from other values, between two trainings. On all processes together; the chief's count.

        Raises:
          ClusterError: the values belong to a job on parameter servers.
        """
        ...

    def steer(self, settings: Mapping[str, float]) -> None:
        """Chief only: has numbers of the optimizer's state be these from the next step on, such as `learning_rate`.

        Args:
          settings: by the path of a scalar leaf of the state.

        Raises:
          ModelError: the state has no such leaf.
        """
        ...

    def optimizer_state(self) -> PyTree:
        """The optimizer's state as it now is, as NumPy arrays; `None` where this process does not have it."""
        ...

    def computed(
        self, function: Callable[[PyTree, PyTree, PyTree], PyTree], batches: Iterable[PyTree], what: str
    ) -> Iterator[tuple[PyTree, PyTree]]:
        """What a function makes of batches, with the values as they now are.

        Args:
          function: `function(params, state, batch)`, compiled.
          batches: any iterable.
          what: as in «worker:0 {what}».

        Yields:
          Each batch, and its outputs as arrays that this process has all of.

        Raises:
          ClusterError: other processes must compute this together with this one, and do something else.
          DataError: they bring other batches.
        """
        ...

    def busy(self, what: str) -> AbstractContextManager[object]:
        """A context in which this replica does something else than to train, for which others wait patiently.

        `what`: as in «worker:0, which {what}».
        """
        ...

    def params(self) -> PyTree:
        """The params as they now are, as arrays that nothing changes later."""
        ...

    def model_state(self) -> PyTree:
        """The model state as it was when `params` was last called, `None` for a model without one."""
        ...

    def progress(self) -> Progress | None:
        """How far the job is; may be called from another thread; `None` where it cannot be told now."""
        ...

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent."""
        ...


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

    def start(self, model: Model, restore: RestoreFrom | None = None) -> Replica:
        """Takes this process into the job, which begins from what `restore` has, if it has not begun yet."""
        ...

    def serve(self) -> str:
        """Serves until the job ends; returns why it did. Only where `serves`."""
        ...
