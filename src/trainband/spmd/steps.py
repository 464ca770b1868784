"""MeshSteps: the steps of a training run that all devices of a mesh compute as one program."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from trainband.job.engine import Steps
from trainband.job.reports import FINISHED, USED_UP, StepReport, TaskStatistics, TrainingStatus
from trainband.job.statistics import Rate
from trainband.model.batch import Dealt, examples_in
from trainband.model.variables import PyTree
from trainband.runtime.memory import resident_bytes
from trainband.runtime.overrides import override
from trainband.spmd.calls import Calls
from trainband.spmd.checkpoints import Checkpoints
from trainband.spmd.compute_devices import ComputeDevices
from trainband.spmd.first_step import FirstStep
from trainband.spmd.pipeline import Pipeline
from trainband.spmd.process_group import Group
from trainband.spmd.sharded_state import ShardedState
from trainband.spmd.step_inputs import StepInputs


class MeshSteps(Steps):
    """`Steps` on a mesh. A step that is not finite changes nothing, as on a ps.

    The outcome of a step is read while the next one is under way, so that no device waits for Python: a refusal is
    reported one step late, except that of the last step. With `steps_per_execution`, a call computes that many steps
    in a row, and a step here means a call. If the end of the training or of the data leaves too little for a call, one
    process makes single steps; several make a whole call, whose last steps change nothing.

    Several processes run the same steps in the same order, each on its own batches. Their requests to one another
    travel with the gradients, as control flags, and cost no exchange, so all receive them in the same step.

    Args:
      group: the processes.
      state: what the steps change.
      inputs: places the batches.
      pipeline: dispatches calls.
      calls: makes them.
      checkpoints: what was saved.
      first: compares the processes at the first step; `None` for one process.
      devices: what this process computes on.
    """

    def __init__(
        self,
        group: Group,
        state: ShardedState,
        inputs: StepInputs,
        pipeline: Pipeline,
        calls: Calls,
        checkpoints: Checkpoints,
        first: FirstStep | None,
        devices: ComputeDevices,
    ) -> None:
        self._group = group
        self._state = state
        self._inputs = inputs
        self._pipeline = pipeline
        self._calls = calls
        self._checkpoints = checkpoints
        self._first = first
        self._devices = devices
        self.place, self.times = inputs.place, calls.times
        self.steps_per_execution = calls.per_call
        self._training_number = 0
        self._starts: tuple[int, ...] = ()
        self._rate = Rate()
        self._examples_rate = Rate()
        self._rates_lock = threading.Lock()

    @property
    @override
    def global_step(self) -> int:
        return self._pipeline.step

    @property
    @override
    def training(self) -> TrainingStatus:
        pipeline = self._pipeline
        return TrainingStatus(
            starts=self._starts,
            last_step=pipeline.last_step,
            unused=pipeline.unused,
            refused=pipeline.refusals.total,
        )

    @override
    def start_training(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:
        group, pipeline = self._group, self._pipeline
        group.check()
        pipeline.settle()
        self._training_number += 1
        self._inputs.sharding.forget()
        key = f"begin/{self._training_number}"
        if group.is_chief:
            group.publish(key, [last_step, list(trainings)])
        limit, begun = group.receive(key, "begins a training run")
        self._starts = tuple(begun)
        pipeline.start_training(limit, self._training_number)
        if self._first is not None:
            self._first.start_training(self._training_number)
        self._checkpoints.start_training()
        self._state.start_training(None if limit is None else limit - pipeline.step)
        self.rates()  # those of this training begin now
        return not pipeline.is_over

    @override
    def step(self, batch: PyTree) -> StepReport:
        """Like `Steps.step`.

        Raises:
          DataError: the batch cannot be split over the devices, or the processes' batches differ in shape.
          NonFiniteGradient: the gradients of 100 steps in a row were not finite.
          PeerError: another process is gone.
        """
        return self._calls.train(batch) if self._first is None else self._step_with_all(batch, self._first)

    def _step_with_all(self, batch: PyTree, first: FirstStep) -> StepReport:
        """Trains in lockstep with the other processes."""
        pipeline = self._pipeline
        self._group.check()
        if isinstance(batch, Dealt):
            batch = batch.batch
            self._inputs.sharding.expect(examples_in(batch))
        first.compare_batches(batch)
        had_ended = pipeline.ended  # it may have learned of that between two steps
        if had_ended:
            pipeline.drain()
            return self._ended_report(self._calls.none())
        pipeline.outcomes.start_report(pipeline.calls)
        report = self._calls.train(batch)
        first.compare_params()
        if pipeline.ended:
            pipeline.drain()
        surplus = pipeline.outcomes.end_report()
        report = report if not surplus else replace(report, steps=report.steps - surplus)
        return self._ended_report(report) if pipeline.ended else report

    def _ended_report(self, report: StepReport) -> StepReport:
        """Returns a report adapted to a training run that a process has ended for all."""
        pipeline = self._pipeline
        done = pipeline.ended == FINISHED
        if done:
            pipeline.last_step = pipeline.step
        # If this process has ended it, the feed finds that out too.
        stopped = "" if done or pipeline.ended_here else pipeline.ended
        return replace(report, global_step=pipeline.step, applied=False, done=done, stopped=stopped)

    @override
    def catch_up(self, batch: PyTree | None = None) -> None:
        """Does nothing: values change only in steps of this process."""

    @override
    def pop_known(self) -> Sequence[tuple[int, float]]:
        return self._pipeline.outcomes.pop_known()

    @override
    def settle(self) -> None:
        self._pipeline.drain()

    @override
    def missing(self) -> int:
        """Returns 0: no update made here is lost."""
        return 0

    @override
    def pause(self, reason: str = "") -> str:
        """Ends the training for all; returns the reason of the first process that did."""
        self._pipeline.end_for_all(reason or USED_UP)
        return self._pipeline.ended

    @override
    def finish(self) -> None:
        self._pipeline.finish()

    @override
    def statistics(self) -> TaskStatistics:
        """Like `Steps.statistics`: this process has made every step of the job."""
        pipeline, memory = self._pipeline, self._devices.memory()
        return TaskStatistics(
            task=self._group.task,
            is_chief=self._group.is_chief,
            global_step=pipeline.step,
            last_step=pipeline.last_step,
            steps=pipeline.step,
            examples=self._calls.examples,
            refused=pipeline.refusals.total,
            loss=pipeline.outcomes.loss,
            seconds=self.times.seconds(),
            checkpoint=self._checkpoints.status,
            device=self._devices.description,
            device_memory_bytes=memory.used,
            device_memory_limit_bytes=memory.limit,
            memory_bytes=resident_bytes(),
        )

    def rates(self) -> tuple[float, float]:
        """Returns recent steps and examples per second. The display and the history call this from their threads."""
        with self._rates_lock:
            now = time.monotonic()
            return self._rate.at(now, self._pipeline.step), self._examples_rate.at(now, self._calls.examples)
