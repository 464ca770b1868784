"""Checkpoints: an engine's part in saving and restoring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from trainband.checkpoint import Checkpoint
from trainband.errors import CheckpointError, DamagedCheckpoint
from trainband.model.worker_state import WorkerState
from trainband.ps.statistics import CheckpointStatus
from trainband.ps.worker.checkpointing import RestoreFrom
from trainband.runtime.waiting import Say
from trainband.spmd.agreement import MAKES
from trainband.spmd.pipeline import BIAS, KNOWN_AFTER, Pipeline
from trainband.spmd.process_group import Group
from trainband.spmd.saving import ChiefSaving
from trainband.spmd.shared_data import SharedData
from trainband.spmd.values import Values


class Checkpoints:
    """The chief writes; the others leave it their worker states and, where no process has all values, their parts.

    Args:
      values: what is saved.
      pipeline: the training.
      group: the processes.
      data: the data sources that are saved with the values.
      sharers: the processes that compute this one's part of each batch, itself among them.
      per_call: steps in a call.
      say: where lines for people go.
    """

    def __init__(
        self,
        values: Values,
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
        """The one that the job has begun from."""
        self.worker_state: WorkerState | None = None
        """What this process left in it."""
        self.status: CheckpointStatus | None = None
        """Of the last one that has landed."""
        self._saving: ChiefSaving | None = None
        self._announced: ChiefSaving | None = None
        self._saved_step: int | None = None
        """On the others: the global step that the chief's checkpoint is of."""
        self._orders = 0
        self._all_give = False
        """Whether all others wait for orders to give the chief their parts."""
        pipeline.announcement = self._announcement

    def begin_training(self) -> None:
        """Forgets what was ordered in the training before, of which the other processes hear no more."""
        self._saved_step = None
        if self._group.count > 1:
            self._saving = self._announced = None

    def landed(self, checkpoint: CheckpointStatus) -> None:
        """Notes a checkpoint that was committed."""
        self.status = checkpoint

    # --- saving

    def save(self, directory: Path, at: int | None) -> ChiefSaving:
        """Begins to write when the global step is `at`; in parts, at one that all can hear of before."""
        pipeline, in_parts = self._pipeline, self._values.in_parts
        at_once = pipeline.is_over or pipeline.ended or self._all_give
        if in_parts and not at_once:
            at = max(at or 0, pipeline.step + (KNOWN_AFTER + 1) * self._per_call)
            if pipeline.last_step is not None:
                at = min(at, pipeline.last_step)
        self._saving = saving = ChiefSaving(directory, at or 0, self._group)
        if in_parts and at_once and saving.due(pipeline.step):
            self._announced = saving
            self._order("gather")
        self.begin_due()
        return saving

    def _announcement(self) -> float:
        """What the chief says of its checkpoint with the next call; once, and not before the others can note it."""
        saving, pipeline = self._saving, self._pipeline
        if saving is None or saving is self._announced or not self._group.is_chief:
            return 0.0
        if saving.at > pipeline.step + KNOWN_AFTER * self._per_call and not self._values.in_parts:
            return 0.0
        self._announced = saving
        pipeline.settle()  # the others hear of it when they know all that was before
        return float(max(saving.at, saving.step or 0) - pipeline.step + BIAS)

    def begin_due(self) -> int | None:
        """Begins a checkpoint of things as they now are, if one is due: see `StepReport.worker_state`."""
        if not self._group.is_chief:
            return self._give_what_is_due()
        if self._saving is None or not self._saving.due(self._pipeline.step):
            return None
        self._pipeline.settle()
        step = self._pipeline.step
        if not self._saving.due(step):  # a step was refused
            return None
        values = self._values.gathered() if self._values.in_parts else self._values.copies()
        self._saving.begin(step, self._values.contents(), values, self._data.record())
        return 0

    def _give_what_is_due(self) -> int | None:
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
        # What was saved is of the first call that ended there: an order may be for a step within it.
        saved = next(boundary for boundary in pipeline.boundaries if boundary.step >= at)
        self._saved_step = saved.step
        return pipeline.steps - saved.batches

    def _is_announced_due(self) -> bool:
        return self._pipeline.saves_at is not None and self._pipeline.step >= self._pipeline.saves_at

    def leave_worker_state(self, training: int, position: str, behind: int = 0) -> None:
        """Leaves what this process must find again to resume from here, or from so many of its steps ago.

        `position`: of that step. See `WorkerState`.
        """
        group, saving = self._group, self._saving
        carry = self._values.now.carry if group.is_chief else ()  # all have the same
        steps = self._pipeline.steps - behind
        if not group.is_chief:
            at, self._saved_step = self._pipeline.step if self._saved_step is None else self._saved_step, None
            state = WorkerState.pack(group.task, training, steps, position, carry)
            group.publish(f"worker_state/{at}/{group.index}", state.to_bytes().hex())
        elif saving is not None and saving.begun and saving.worker_state is None:  # what comes later is for later ones
            saving.worker_state = WorkerState.pack(group.task, training, steps, position, carry).to_bytes()

    # --- in parts

    def gather(self, work: Callable[[], object]) -> bool:
        """Has the chief do `work`, for which the others give their parts; whether this one gave any.

        Where the values are in parts, all processes call this at the same time.
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
                gave, self._pipeline.saves_at = True, None  # in place of one that was ordered before
        return gave

    def end(self) -> None:
        """Takes part in the chief's last checkpoints, where the values are in parts."""
        if self._values.in_parts:
            self.gather(lambda: None)

    def _order(self, order: str) -> None:
        self._orders += 1
        self._group.publish(f"order/{self._orders}", order)

    # --- restoring

    def restore(self, source: RestoreFrom) -> None:
        """Takes the values of the newest checkpoint that is whole, if there is one; the chief chooses.

        Raises:
          CheckpointError: another process does not see it.
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
                    f"{group.task} does not see the checkpoint of global step {step:,}, from which the job goes on: "
                    "all workers must see the checkpoints' directory under the same path."
                )
            self._restore(found, source)

    def _restore_newest(self, source: RestoreFrom) -> None:
        for checkpoint in source.candidates():
            try:
                self._restore(checkpoint, source)
            except DamagedCheckpoint as exc:
                self._say(f"{checkpoint.path} is damaged ({exc}); the checkpoint before it is tried")
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
        # Those who compute one part together must go on at one place in the data.
        owner = next((number for number in self._sharers if number in states), None)
        self.worker_state = None
        if owner is not None:
            self._pipeline.steps = states[owner].steps
            self.worker_state = msgspec.structs.replace(states[owner], task=self._group.task, carry=())
        elif states:
            self._say(
                f"{self._group.task} begins at the start of its data: fewer workers left the checkpoint, and only of "
                "trainband.data.Batches is it known how far they have come together"
            )
