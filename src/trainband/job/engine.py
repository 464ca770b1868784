"""Engine: a strategy's part in a running job, as small protocols for the session's different callers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from trainband.checkpoint import Checkpoint
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.job.checkpoints import Saving
from trainband.job.reports import Progress, StepReport, TaskStatistics, TrainingStatus
from trainband.model.variables import PyTree
from trainband.model.worker_state import WorkerState
from trainband.runtime.step_recording import StepRecorder, StepRecording
from trainband.runtime.step_times import StepTimes


class Steps(Protocol):
    """Makes the steps of one training run."""

    place: Callable[[PyTree], PyTree] | None
    """Moves a batch to the device ahead of its step; `None` if steps take batches as they are."""

    steps_per_execution: int
    """How many steps one call of `step` computes: as the model requests, or 1 if every step is an exchange."""

    share: Callable[[], int] | None = None
    """How many parts the next step must have, 0 for the usual number, if the update rule decides it: `step` takes a
    `Portion` then. `None` if a step takes a batch as it is."""

    times: StepTimes
    """The time that this task's steps have spent, by part."""

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this task knows."""
        ...

    @property
    def training(self) -> TrainingStatus:
        """The training that began last, as far as this task knows."""
        ...

    def start_training(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:
        """Begins a training run until global step `last_step`; returns whether any update is left to make.

        The chief's values count; a worker that becomes the chief while it waits for them uses its own.

        Args:
          last_step: `None` for no limit.
          trainings: the global step at which each of the script's training runs began, including this one.
        """
        ...

    def step(self, batch: PyTree) -> StepReport:
        """Trains on one batch, or on `Several` if `steps_per_execution` is more than 1, up to the training's end."""
        ...

    def catch_up(self, batch: PyTree | None = None) -> None:
        """Gets the params that others have changed since this task's last step, where that is possible.

        Args:
          batch: compiles its step first, which may take long.
        """

    def pop_known(self) -> Sequence[tuple[int, float]]:
        """Returns losses that became known since the last report, see `StepReport.known`; each one once."""
        ...

    def settle(self) -> None:
        """Waits for pending steps so that `global_step` counts completed updates only. If all tasks compute in
        lockstep, it is then the same on all of them.
        """
        ...

    def missing(self) -> int:
        """Returns how many requested updates must be repeated because a ps has lost them; 0 without a limit."""
        ...

    def pause(self, reason: str = "") -> str:
        """Ends this task's part in the training: its batches are used up, and no one must wait for it.

        Args:
          reason: text for the others if they cannot continue without it.

        Returns:
          Why the training has ended for all if they cannot, which may be another task's reason; else empty.
        """
        ...

    def finish(self) -> None:
        """Chief only: ends the training for all at the current step."""
        ...

    def statistics(self) -> TaskStatistics:
        """Returns what this task has done, without asking another; may be called from another thread."""
        ...


class Values(Protocol):
    """Reads and changes the trained values."""

    in_parts: bool
    """Whether no process has all the values: whatever needs them runs on all processes at the same time."""

    def params(self) -> PyTree:
        """Returns the current params as arrays that will not change."""
        ...

    def model_state(self) -> PyTree:
        """Returns the model state as of the last call of `params`, `None` for a model without one."""
        ...

    def optimizer_state(self) -> PyTree:
        """Returns the current optimizer state as NumPy arrays; `None` if this process does not have it."""
        ...

    def assign(self, params: PyTree, state: PyTree, optimizer: PyTree) -> None:
        """Replaces all values between two trainings. Call it on all processes; the chief's values count.

        Raises:
          ClusterError: the values belong to a job on parameter servers.
        """
        ...

    def steer(self, settings: Mapping[str, float]) -> None:
        """Chief only: sets scalars of the optimizer state, such as `learning_rate`, from the next step on.

        Args:
          settings: by the path of a scalar leaf of the state.

        Raises:
          ModelError: the state has no such leaf.
        """
        ...

    def computed(
        self, function: Callable[[PyTree, PyTree, PyTree], PyTree], batches: Iterable[PyTree], what: str
    ) -> Iterator[tuple[PyTree, PyTree]]:
        """Applies a function to batches with the current values.

        Args:
          function: `function(params, state, batch)`, compiled.
          batches: any iterable.
          what: as in "worker:0 {what}".

        Yields:
          Each batch, and its outputs as complete arrays of this process.

        Raises:
          ClusterError: other processes must compute this together with this one, but do something else.
          DataError: they have other batches.
        """
        ...


class Checkpoints(Protocol):
    """Saves and restores the job's checkpoints."""

    @property
    def restored(self) -> Checkpoint | None:
        """The checkpoint that the job started from, as far as this task knows: the chief does."""
        ...

    @property
    def worker_state(self) -> WorkerState | None:
        """The state of this task in the checkpoint that it resumes from."""
        ...

    def save(self, directory: Path, at: int | None) -> Saving:
        """Chief only: begins to write a checkpoint into `directory` when the global step is `at`; at once if it is.

        `None`: soon, at the next step that all tasks can save at together.

        Raises:
          PeerError: a ps cannot be reached, or is still writing the previous one.
        """
        ...

    def store_worker_state(self, training: int, position: str, behind: int = 0) -> None:
        """Stores what this task needs to resume from here, or from `behind` of its steps earlier.

        `position`: at that step. See `WorkerState`.
        """
        ...

    def gather(self, work: Callable[[], object]) -> bool:
        """Runs `work` on the chief, with the parts that the others give; returns whether this task gave any.

        If the values are in parts, all tasks call this at the same time.
        """
        ...

    def end(self) -> None:
        """Ends the training's last part, in which all tasks may have to act at the same time."""
        ...


class Peers(Protocol):
    """The identity of this task, and its communication with other tasks of the job."""

    task: str
    """The name of this task in the cluster, or `local`."""

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief. That may change between two calls when a chief dies or comes back.

        Only the chief may call `finish`, `save` and `steer`; others are refused.
        """
        ...

    @property
    def job(self) -> str:
        """A random id of the running job, the same for all its tasks; empty for a task that runs alone."""
        ...

    def at_work(self) -> tuple[str, ...]:
        """The other workers that still train."""
        ...

    def busy(self, what: str) -> AbstractContextManager[object]:
        """Returns a context in which this task does something other than training; the others then wait patiently.

        `what`: as in "worker:0, which {what}".
        """
        ...

    def shorten_waits(self, request: str) -> None:
        """Shortens this task's waits for absent tasks from now on, because it was asked to leave by `request`. May be
        called by a signal handler.
        """
        ...

    def progress(self) -> Progress | None:
        """Returns the job's progress; may be called from another thread; `None` if it is not known now."""
        ...

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        """Requests the next piece of a data source that the job's workers share. May be called from any thread."""
        ...

    def recording(self, recorder: StepRecorder) -> StepRecording:
        """Returns a recorder's record of this task's steps, with what the task knows of the clocks of others."""
        ...


class Engine(Protocol):
    """One process's part in a running job."""

    @property
    def steps(self) -> Steps: ...

    @property
    def values(self) -> Values: ...

    @property
    def checkpoints(self) -> Checkpoints: ...

    @property
    def peers(self) -> Peers: ...

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent."""
        ...
