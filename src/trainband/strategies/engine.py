"""Engine: what a strategy hands to the session to run steps with, as the small protocols of those who use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from trainband.checkpoint import Checkpoint
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.model.variables import PyTree
from trainband.model.worker_state import WorkerState
from trainband.ps.statistics import CheckpointStatus
from trainband.ps.worker.checkpointing import SavedParts
from trainband.runtime.step_recording import StepRecorder, StepRecording
from trainband.runtime.step_times import StepTimes
from trainband.spmd.report import Progress, StepReport, TaskStatistics


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


class Member(Protocol):
    """What everybody may ask of one task's part in a job."""

    @property
    def task(self) -> str:
        """Its name in the cluster, or `local`."""
        ...

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief. That may change between any two looks, where a chief dies or comes back.

        Only the chief may call `finish`, `save`, `landed` and `steer`; others are refused.
        """
        ...

    @property
    def job(self) -> str:
        """A random id of the running job, the same for all its tasks; empty where there is nobody to share it with."""
        ...

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this task knows."""
        ...


class Stepper(Member, Protocol):
    """Makes the steps of one training after the other."""

    @property
    def place(self) -> Callable[[PyTree], PyTree] | None:
        """What moves a batch to the device ahead of its step; `None` where steps take it as it is."""
        ...

    @property
    def steps_per_execution(self) -> int:
        """How many steps `step` takes at once: what the model asks for, or 1 where each step is an exchange."""
        ...

    @property
    def share(self) -> Callable[[], int] | None:
        """How many parts the next step shall have, 0 for the usual ones, where an update rule says it: `step` takes a
        `Portion` then. `None` where a step takes a batch as it is.
        """
        return None

    @property
    def times(self) -> StepTimes:
        """What this task's steps have spent their time on."""
        ...

    def recording(self, recorder: StepRecorder) -> StepRecording:
        """What a recorder has noted of this task's steps, with what the task knows of the clocks of others."""
        ...

    @property
    def trainings(self) -> tuple[int, ...]:
        """The global step at which each training of the script began, in a job that is under way already.

        After `begin`: with the training that was begun, on every worker.
        """
        ...

    @property
    def unused(self) -> int:
        """How many of this task's last batches changed nothing, because another had ended the training."""
        ...

    @property
    def refused(self) -> int:
        """How many of this task's gradients were refused in the training that was begun last."""
        ...

    def begin(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:
        """Begins a training until the global step is `last_step`; returns whether any update is left to make.

        What the chief says counts; a worker that becomes the chief while it waits for that says it itself.

        Args:
          last_step: `None` for no limit.
          trainings: where each of the script began, with this one.
        """
        ...

    def step(self, batch: PyTree) -> StepReport:
        """Trains on one batch; on `Several` where `steps_per_execution` is more than 1, until the training's end."""
        ...

    def catch_up(self, batch: PyTree | None = None) -> None:
        """Gets the params that others have changed while this task was not at a step, where that can be.

        Args:
          batch: compiles its step first, which may take long.
        """

    def take_known(self) -> Sequence[tuple[int, float]]:
        """What has become known of steps since the last report, see `StepReport.known`; gives each once."""
        ...

    def settle(self) -> None:
        """Sees to it that `global_step` is what was made and not what is hoped for. Where all compute in step, that is
        the outcome of all steps under way, and all know the same then.
        """
        ...

    def missing(self) -> int:
        """Updates that were asked for and are to be made anew, because a ps has lost them since; 0 without a limit."""
        ...

    def pause(self, reason: str = "") -> str:
        """Ends this task's part in the training under way: its batches are used up, nobody shall wait for it.

        Args:
          reason: in words, for the others where they cannot go on without it.

        Returns:
          Where they cannot: why the training has ended for all, which may be the reason of another. Else nothing.
        """
        ...

    def finish(self) -> None:
        """Chief only: ends the training under way where it is, for all."""
        ...

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        """Asks for the next piece of a data source that the job's workers share. May be called from any thread."""
        ...


class Values(Member, Protocol):
    """Reads and changes what is trained."""

    @property
    def in_parts(self) -> bool:
        """Whether no process has all the values: what needs them is done by all at the same time."""
        ...

    def params(self) -> PyTree:
        """The params as they now are, as arrays that nothing changes later."""
        ...

    def model_state(self) -> PyTree:
        """The model state as it was when `params` was last called, `None` for a model without one."""
        ...

    def optimizer_state(self) -> PyTree:
        """The optimizer's state as it now is, as NumPy arrays; `None` where this process does not have it."""
        ...

    def assign(self, params: PyTree, state: PyTree, optimizer: PyTree) -> None:
        """Continues from other values, between two trainings. On all processes together; the chief's count.

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


class CheckpointSource(Member, Protocol):
    """Gives checkpoints what they are made of."""

    @property
    def restored(self) -> Checkpoint | None:
        """The checkpoint that the job has begun from, as far as this task knows: the chief does."""
        ...

    @property
    def worker_state(self) -> WorkerState | None:
        """What this task left in the checkpoint that it resumes from."""
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

    def leave_worker_state(self, training: int, position: str, behind: int = 0) -> None:
        """Leaves what this task must find again to resume from here, or from so many of its steps ago.

        `position`: of that step. See `WorkerState`.
        """
        ...

    def gather(self, work: Callable[[], object]) -> bool:
        """Has the chief do `work`, for which the others give their parts; whether this one gave any.

        Where the values are in parts, all tasks call this at the same time.
        """
        ...

    def end(self) -> None:
        """Ends the training's last part, in which all tasks may have to do something at the same time."""
        ...


class Coordination(Member, Protocol):
    """Deals with the other tasks."""

    def at_work(self) -> tuple[str, ...]:
        """The other workers that still train."""
        ...

    def busy(self, what: str) -> AbstractContextManager[object]:
        """A context in which this task does something else than to train, for which others wait patiently.

        `what`: as in «worker:0, which {what}».
        """
        ...

    def shorten_waits(self, request: str) -> None:
        """From now on, this task does not wait long for one that is away: it is to leave, by this request to end. May
        be called by a signal handler.
        """
        ...

    def progress(self) -> Progress | None:
        """How far the job is; may be called from another thread; `None` where it cannot be told now."""
        ...

    def statistics(self) -> TaskStatistics:
        """What this task has done, without asking anybody; may be called from another thread."""
        ...

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent."""
        ...


class Engine(Stepper, Values, CheckpointSource, Coordination, Protocol):
    """One process's part in a running job."""
