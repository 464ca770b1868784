"""Checkpoints: how the processes of a mesh save and restore."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import msgspec
import numpy as np

from trainband.checkpoint import Checkpoint, Part, write_part
from trainband.errors import CheckpointError, DamagedCheckpoint
from trainband.job.checkpoints import WORKER_STATE_S, CheckpointStatus, RestoreFrom, SavedParts
from trainband.model.contents import Contents
from trainband.model.variables import PyTree
from trainband.model.worker_state import WorkerState
from trainband.runtime.waiting import Say
from trainband.spmd.agreement import MAKES
from trainband.spmd.pipeline import BIAS, KNOWN_AFTER, Pipeline
from trainband.spmd.process_group import Group
from trainband.spmd.sharded_state import ShardedState
from trainband.spmd.shared_data import SharedData

FILE = "part-00000-of-00001.safetensors"


class ChiefSaving:
    """A `Saving` of all values, which the chief writes in a thread, with the worker states of all processes.

    Args:
      directory: where.
      at: the global step to wait for.
      group: the processes.
      committed: called on commit.
    """

    def __init__(self, directory: Path, at: int, group: Group, committed: Callable[[CheckpointStatus], None]) -> None:
        self.at = at
        self.committed = committed
        self.worker_state: bytes | None = None
        """The worker state of this process; set once the values have been taken."""
        self.started_at: float | None = None
        """When its values were taken, by `time.monotonic`."""
        self.step: int | None = None
        """The global step of its values; `None` before they are taken."""
        self._directory = directory
        self._group = group
        self._sources: Mapping[str, str] = {}
        self._thread: threading.Thread | None = None
        self._part: Part | None = None
        self._failure: Exception | None = None
        self._written_at: float | None = None

    @property
    def waits(self) -> bool:
        """Whether its step has not been reached, so that no values have been copied."""
        return self._thread is None

    def due(self, step: int) -> bool:
        """Whether to take its values at this global step, if not taken at an earlier one."""
        return self.waits and step >= self.at

    def start(self, step: int, contents: Contents, values: PyTree, sources: Mapping[str, str]) -> None:
        """Writes these values, which nothing else uses, in the order of `contents`."""
        self._sources = sources
        self.step = step
        self.started_at = time.monotonic()
        leaves = jax.tree.leaves(values)

        def write() -> None:
            try:
                arrays = [np.asarray(leaf) for leaf in leaves]
                pieces = [(piece, array) for (piece,), array in zip(contents, arrays, strict=True)]
                self._part = write_part(self._directory, FILE, ps=0, version=step, pieces=pieces)
            except Exception as exc:  # `poll` reports any failure
                self._failure = exc

        thread = threading.Thread(target=write, name="trainband-save", daemon=True)
        thread.start()
        self._thread = thread

    def poll(self) -> SavedParts | None:
        """Returns what was written once all of it is; `None` before.

        Raises:
          CheckpointError: it could not be written.
        """
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        if self._part is None or self.worker_state is None:
            return None
        states, missing = {0: self.worker_state}, []
        if WorkerState.from_bytes(self.worker_state, "itself").position:  # else its position in the data is unknown
            self._written_at = self._written_at or time.monotonic()
            step = self._part.version
            for index in range(1, self._group.count):
                state = self._group.read(f"worker_state/{step}/{index}")
                if state is None:
                    missing.append(self._group.name(index))
                else:
                    states[index] = bytes.fromhex(state)
            if missing and time.monotonic() - self._written_at < WORKER_STATE_S:
                return None
            self._group.delete_before("worker_state", step)  # this step may be saved again, at the end
        return SavedParts((self._part,), states, self._sources, tuple(missing))


class Checkpoints:
    """The chief writes; the others leave it their worker states and, if no process has all values, their parts.

    Args:
      values: what is saved.
      pipeline: the training.
      group: the processes.
      data: the data sources that are saved with the values.
      sharers: the processes that compute this one's part of each batch, itself among them.
      per_call: steps in a call.
      say: prints lines for the user.
    """

    def __init__(
        self,
        values: ShardedState,
        pipeline: Pipeline,
        group: Group,
        data: SharedData,
        *,
        sharers: Sequence[int],
        per_call: int,
        say: Say,
    ) -> None:
        self._values = values
        self._pipeline = pipeline
        self._group = group
        self._data = data
        self._sharers = sharers
        self._per_call = per_call
        self._say = say
        self.restored: Checkpoint | None = None
        """The one that the job began from."""
        self.worker_state: WorkerState | None = None
        """This process's state in it."""
        self.status: CheckpointStatus | None = None
        """The status of the last committed checkpoint."""
        self._saving: ChiefSaving | None = None
        self._announced: ChiefSaving | None = None
        self._saved_step: int | None = None
        """Not on the chief: the global step of the chief's checkpoint."""
        self._orders = 0
        self._all_give = False
        """Whether all others wait for orders to give the chief their parts."""
        pipeline.announcement = self._announcement

    def start_training(self) -> None:
        """Forgets orders of the previous training run, which the other processes no longer receive."""
        self._saved_step = None
        if self._group.count > 1:
            self._saving = self._announced = None

    def save(self, directory: Path, at: int | None) -> ChiefSaving:
        """Begins to write at global step `at`; for values in parts, at one that all can learn of in time."""
        pipeline, in_parts = self._pipeline, self._values.in_parts
        at_once = pipeline.is_over or pipeline.ended or self._all_give
        if in_parts and not at_once:
            at = max(at or 0, pipeline.step + (KNOWN_AFTER + 1) * self._per_call)
            if pipeline.last_step is not None:
                at = min(at, pipeline.last_step)
        self._saving = saving = ChiefSaving(directory, at or 0, self._group, self._set_status)
        if in_parts and at_once and saving.due(pipeline.step):
            self._announced = saving
            self._order("gather")
        self.start_due()
        return saving

    def _set_status(self, status: CheckpointStatus) -> None:
        self.status = status

    def _announcement(self) -> float:
        """Returns the chief's flag about its checkpoint for the next call; once, when the others can note it."""
        saving, pipeline = self._saving, self._pipeline
        if saving is None or saving is self._announced or not self._group.is_chief:
            return 0.0
        if saving.at > pipeline.step + KNOWN_AFTER * self._per_call and not self._values.in_parts:
            return 0.0
        self._announced = saving
        pipeline.settle()  # when the others receive it, they know all earlier outcomes
        return float(max(saving.at, saving.step or 0) - pipeline.step + BIAS)

    def start_due(self) -> int | None:
        """Begins a checkpoint of the current state, if one is due: see `StepReport.worker_state`."""
        if not self._group.is_chief:
            return self._contribute_due()
        if self._saving is None or not self._saving.due(self._pipeline.step):
            return None
        self._pipeline.settle()
        step = self._pipeline.step
        if not self._saving.due(step):  # a step was refused
            return None
        values = self._values.gathered() if self._values.in_parts else self._values.copies()
        self._saving.start(step, self._values.contents(), values, self._data.record())
        return 0

    def _contribute_due(self) -> int | None:
        pipeline = self._pipeline
        if self._is_announced_due():
            pipeline.settle()
        pipeline.mark_boundary()
        at = pipeline.saves_at
        if at is None or not self._is_announced_due():
            return None
        if self._values.in_parts:
            self._values.gathered()
        pipeline.saves_at = None
        # The first call that ended there was saved: an order may be for a step within it.
        saved = next(boundary for boundary in pipeline.boundaries if boundary.step >= at)
        self._saved_step = saved.step
        return pipeline.steps - saved.batches

    def _is_announced_due(self) -> bool:
        return self._pipeline.saves_at is not None and self._pipeline.step >= self._pipeline.saves_at

    def store_worker_state(self, training: int, position: str, behind: int = 0) -> None:
        """Leaves the state that this process needs to resume from here, or from `behind` of its steps ago.

        `position`: at that step. See `WorkerState`.
        """
        group, saving = self._group, self._saving
        carry = self._values.now.carry if group.is_chief else ()  # all have the same
        steps = self._pipeline.steps - behind
        if not group.is_chief:
            at, self._saved_step = self._pipeline.step if self._saved_step is None else self._saved_step, None
            state = WorkerState.pack(group.task, training, steps, position, carry)
            group.publish(f"worker_state/{at}/{group.index}", state.to_bytes().hex())
        elif saving is not None and not saving.waits and saving.worker_state is None:  # later ones are for later saves
            saving.worker_state = WorkerState.pack(group.task, training, steps, position, carry).to_bytes()

    def gather(self, work: Callable[[], object]) -> bool:
        """Runs `work` on the chief, to which the others give their parts; returns whether this one gave any.

        If the values are in parts, all processes call this at the same time.
        """
        self._pipeline.settle()
        if self._group.is_chief:
            self._all_give = True
            try:
                work()
            finally:
                self._all_give = False
                self._order("over")
            return False
        gave, order = False, ""
        while order != "over":
            self._orders += 1
            order = self._group.receive(f"order/{self._orders}", "gives the chief its parts of the variables")
            if order == "gather":
                self._values.gathered()
                gave, self._pipeline.saves_at = True, None  # replaces an earlier order
        return gave

    def end(self) -> None:
        """Takes part in the chief's last checkpoints, if the values are in parts."""
        if self._values.in_parts:
            self.gather(lambda: None)

    def _order(self, order: str) -> None:
        self._orders += 1
        self._group.publish(f"order/{self._orders}", order)

    def restore(self, source: RestoreFrom) -> None:
        """Restores the newest intact checkpoint, if there is one; the chief chooses.

        Raises:
          CheckpointError: another process cannot find it.
        """
        group = self._group
        if group.is_chief:
            self._restore_newest(source)
            group.publish("restored", [self._pipeline.step] if self.restored is not None else [])
            return
        for step in group.receive("restored", MAKES):
            found = next((one for one in source.candidates() if one.global_step == step), None)
            if found is None:
                raise CheckpointError(
                    f"{group.task} cannot find the checkpoint of global step {step:,} that the job resumes from: "
                    "all workers must see the checkpoint directory under the same path."
                )
            self._restore(found, source)

    def _restore_newest(self, source: RestoreFrom) -> None:
        for checkpoint in source.candidates():
            try:
                self._restore(checkpoint, source)
            except DamagedCheckpoint as exc:
                self._say(f"{checkpoint.path} is damaged ({exc}); trying the checkpoint before it")
                continue
            return

    def _restore(self, checkpoint: Checkpoint, source: RestoreFrom) -> None:
        states = {
            number: WorkerState.from_bytes(data, str(checkpoint.path))
            for number, data in source.worker_state(checkpoint).items()
        }
        self._values.restore(checkpoint, optimizer=source.optimizer)
        self.restored, self._pipeline.step = checkpoint, checkpoint.global_step
        self._data.restore(checkpoint)
        if 0 in states:  # the chief's carry, which all have
            self._values.restore_carry(states[0])
            self._pipeline.steps = states[0].steps
        # Processes that compute one part together must resume at one position in the data.
        owner = next((number for number in self._sharers if number in states), None)
        self.worker_state = None
        if owner is not None:
            self._pipeline.steps = states[owner].steps
            self.worker_state = msgspec.structs.replace(states[owner], task=self._group.task, carry=())
        elif states:
            self._say(
                f"{self._group.task} begins at the start of its data: fewer workers left the checkpoint, and only "
                "trainband.data.Batches has a position for all workers together"
            )
