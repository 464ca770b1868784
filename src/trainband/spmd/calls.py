"""Calls: makes calls of the step program, each on the batches of one or several steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from trainband.job.reports import USED_UP, StepReport
from trainband.model.batch import Several, examples_in_step
from trainband.model.variables import PyTree
from trainband.runtime.step_times import StepTimes
from trainband.spmd.checkpoints import Checkpoints
from trainband.spmd.control_flags import ControlFlags
from trainband.spmd.end_of_training import EndOfTraining
from trainband.spmd.pipeline import BEHIND, Computed, Pipeline
from trainband.spmd.step_inputs import StepInputs


class Calls:
    """The training of this process, call by call.

    Args:
      pipeline: dispatches calls.
      inputs: places the batches.
      checkpoints: begins one that is due after a call.
      ending: told when this process's batches end.
      control: tells the other processes; `None` without others.
      per_call: steps in a call.
      accumulate: micro-batches in a step.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        inputs: StepInputs,
        checkpoints: Checkpoints,
        ending: EndOfTraining,
        control: ControlFlags | None,
        *,
        per_call: int,
        accumulate: int,
    ) -> None:
        self._pipeline = pipeline
        self._inputs = inputs
        self._checkpoints = checkpoints
        self._ending = ending
        self._control = control
        self._accumulate = accumulate
        self.per_call = per_call
        """Steps in a call."""
        self.times = StepTimes()
        """How the steps have spent their time."""
        self.examples = 0
        """How many this process has used."""

    def train(self, batch: PyTree) -> StepReport:
        """Trains on one batch, or on those of several steps, unless all updates are made."""
        pipeline = self._pipeline
        if pipeline.is_over and pipeline.is_settled_over():
            return self.none()
        if self.per_call == 1:
            given = self._inputs.of_step(batch)
            return self._report(self._run(given, (given,)))
        several = self._inputs.several(batch)
        return self._one(several) if self._control is None else self._one_with_all(several, self._control)

    def none(self) -> StepReport:
        """Returns the report of a call that makes no step because the training is over."""
        pipeline = self._pipeline
        refusal, known = pipeline.outcomes.pop_refusal(), pipeline.outcomes.pop_known()
        return StepReport(float("nan"), pipeline.step, False, 0, pipeline.is_over, refusal, steps=0, known=known)

    def _one(self, several: Several) -> StepReport:
        """Makes a step on each batch; single steps if there are too few for a call."""
        pipeline, batches, per_call = self._pipeline, several.batches, self.per_call
        if pipeline.room() < per_call:
            pipeline.settle()  # there is more if a step was refused
        if min(len(batches), pipeline.room()) == per_call:
            computed = self._run(self._inputs.of_call(several), batches, count=per_call)
            return self._report(computed, computed.losses, per_call)
        made = []
        for batch in batches:
            if not pipeline.room():
                pipeline.settle()
            if not pipeline.room():
                break
            made.append(self._run(self._inputs.of_step(batch), (batch,)))
        return self._report(made[-1], [computed.loss for computed in made], len(made))

    def _one_with_all(self, several: Several, control: ControlFlags) -> StepReport:
        """Makes a whole call, however few batches there are: all processes compute the same."""
        batches = several.batches
        ends = len(batches) < self.per_call
        if ends:
            control.ends_at = len(batches)
            self._ending.publish(USED_UP, self._pipeline.calls, len(batches))
            several = self._inputs.filled_up(several)
        computed = self._run(self._inputs.of_call(several), batches, count=self.per_call)
        if ends:
            self._pipeline.settle()
        return self._report(computed, computed.losses, len(batches))

    def _run(self, given: PyTree, batches: Sequence[PyTree], *, count: int = 1) -> Computed:
        """Dispatches a call and settles earlier ones.

        Args:
          given: its input.
          batches: the parts of `given` that count.
          count: how many steps it makes.
        """
        pipeline = self._pipeline
        begin = time.monotonic()
        computed = pipeline.dispatch(given, count=count, real=len(batches))
        pipeline.steps += len(batches)
        for batch in batches:
            self.examples += examples_in_step(batch, self._accumulate)
        pipeline.settle(BEHIND)
        self.times.record("compute", begin, time.monotonic())
        self.times.steps += len(batches)
        return computed

    def _report(self, computed: Computed, losses: Any = None, steps: int = 1) -> StepReport:
        """Returns the report of a call, as far as it is known; begins a checkpoint that is due."""
        pipeline = self._pipeline
        if pipeline.is_over:
            pipeline.settle()
        due = self._checkpoints.start_due()
        refusal = pipeline.outcomes.pop_refusal()
        return StepReport(
            computed.loss,
            pipeline.step,
            applied=not refusal,
            staleness=0,
            done=pipeline.is_over,
            refusal=refusal,
            metrics=computed.metrics,
            worker_state=due,
            steps=steps,
            losses=losses,
            known=pipeline.outcomes.pop_known(),
        )
