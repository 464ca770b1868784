"""Pipeline: a training run's calls under way, and the outcomes of earlier ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from trainband.job.reports import FINISHED
from trainband.model.variables import PyTree
from trainband.runtime.waiting import Say
from trainband.spmd.control_flags import ControlFlags
from trainband.spmd.end_of_training import EndOfTraining
from trainband.spmd.outcome_log import OutcomeLog
from trainband.spmd.process_group import Group
from trainband.spmd.refusals import Refusals
from trainband.spmd.sharded_state import ShardedState
from trainband.spmd.step_program import StepFlags, StepProgram

BEHIND = 1
"""Steps under way while the outcome of the previous one is read. On two cores, this makes 1.4 times as many small steps
as waiting for each."""

KNOWN_AFTER = BEHIND + 1
"""Calls after which every process knows the flags that one sent in a call."""

BIAS = 8
"""Keeps the flag about a checkpoint above 0, even if its step has just been made."""


class Outcome(NamedTuple):
    """The outcome of a call of one or several steps, read once it is computed.

    Attributes:
      number: the number of the call in this training run, from 0, including calls that change nothing.
      steps: number of steps in the call.
      real: how many of its steps, from the first, had a batch to train on.
      flags: the flags of each step; see `StepFlags`.
    """

    number: int
    steps: int
    real: int
    flags: jax.Array


class Computed(NamedTuple):
    """The result of a call, perhaps still being computed: the loss of each step, and loss and metrics of the last."""

    losses: Any
    loss: Any
    metrics: PyTree


@dataclass(slots=True)
class Boundary:
    """A process's position between two calls.

    Attributes:
      calls: of this training, made by then.
      step: the global step, as far as it is known.
      batches: that this process had trained on.
    """

    calls: int
    step: int
    batches: int


class Pipeline:
    """Dispatches calls, and reads their outcomes a call later, so that no device waits for Python.

    Until then, every step counts as applied. Several processes all make the same calls in the same order, and learn of
    the training's end in the same one; by then the next call is under way, so a process that ends makes two more, on a
    batch that does not count.

    Args:
      program: of a call.
      state: what it changes.
      group: the processes that compute it.
      control: what this process tells the others with each call; `None` without others.
      ending: why training runs end.
      per_call: steps in a call.
      say: told of refusals.
    """

    def __init__(
        self,
        program: StepProgram,
        state: ShardedState,
        group: Group,
        control: ControlFlags | None,
        ending: EndOfTraining,
        *,
        per_call: int,
        say: Say,
    ) -> None:
        self._program = program
        self._state = state
        self._group = group
        self._control = control
        self._ending = ending
        self._per_call = per_call
        self.announcement: Callable[[], float] = lambda: 0.0
        """Returns the chief's flag about its next checkpoint, see `StepFlags.saves`."""
        self.refusals = Refusals(say)
        self.step = 0
        """The global step, if no step under way is refused."""
        self.last_step: int | None = 0
        self.steps = 0
        """Batches that this process has trained on."""
        self.outcomes = OutcomeLog()
        """Known outcomes of steps."""
        self._pending: deque[Outcome] = deque()
        self.start_training(0, 0)

    def start_training(self, last_step: int | None, training: int) -> None:
        """Begins the training with this number, until the global step is `last_step`."""
        self._training = training
        self.calls, self._settled, self.last_step = 0, self.step, last_step
        self.unused = 0
        """How many of the last batches changed nothing because another process had ended the training."""
        self.saves_at: int | None = None
        """The global step of the checkpoint that the chief has announced."""
        self._last_input: PyTree = None
        self.boundaries: deque[Boundary] = deque([Boundary(0, self.step, self.steps)], maxlen=KNOWN_AFTER + 1)
        self.outcomes.start_training()
        self.refusals.start_training()
        self._ending.start_training(training)

    @property
    def ended(self) -> str:
        """Why the training has ended, once this process knows; empty before."""
        return self._ending.reached

    @property
    def ended_here(self) -> bool:
        """Whether it has ended because this process's batches are used up."""
        return self._ending.reached == self._ending.own

    @property
    def is_over(self) -> bool:
        """Whether all updates are made, if no step under way is refused."""
        return self.last_step is not None and self.step >= self.last_step

    def is_settled_over(self) -> bool:
        """Whether all updates are made, by known outcomes only."""
        if self.is_over:
            self.settle()
        return self.is_over

    def room(self) -> int:
        """How many more updates this training may make, if no step under way is refused; at most one call's."""
        return self._per_call if self.last_step is None else min(self._per_call, self.last_step - self.step)

    def dispatch(self, given: PyTree, ends: float = 0.0, *, count: int = 1, real: int = 1) -> Computed:
        """Dispatches a call, as if all its steps were applied.

        Args:
          given: its input.
          ends: more than 0 if this process cannot continue.
          count: how many steps it makes.
          real: how many of them, from the first, have a batch to train on.
        """
        program = self._program.step if count == 1 else self._program.steps
        state = self._state
        if self._control is None:
            state.now, flags, losses, loss, metrics = program(state.now, given, None)
        else:
            self._last_input = given
            control = self._control.next(ends, self.announcement())
            with self._group.watched(self._training, self.calls + 1):
                state.now, flags, losses, loss, metrics = program(state.now, given, control)
        if not self._program.on_cpu:
            # Beginning the copy only when it is read cost 0.24 ms a step on an H100 (784-100-10, Adam): 1,600 steps/s
            # instead of 3,380.
            flags.copy_to_host_async()
        self._pending.append(Outcome(self.calls, count, real, flags))
        self.step += count
        self.calls += 1
        return Computed(losses, loss, metrics)

    def settle(self, behind: int = 0) -> None:
        """Reads the outcomes of all calls except the last `behind`."""
        while len(self._pending) > behind:
            outcome = self._pending.popleft()
            for index, flags in enumerate(self._flags_of(outcome)):
                self.outcomes.record_refusal(self._record_outcome(outcome, index, flags))

    def _flags_of(self, outcome: Outcome) -> list[StepFlags]:
        """Returns the flags of each step; waits until all are computed."""
        rows: Any
        if self._control is None:
            rows = np.asarray(outcome.flags).tolist()
        else:
            with self._group.watched(self._training, self.calls):
                rows = np.asarray(outcome.flags).tolist()
            self._group.settled()
        return [StepFlags(*rows)] if outcome.steps == 1 else [StepFlags(*row) for row in rows]

    def _record_outcome(self, outcome: Outcome, index: int, flags: StepFlags) -> str:
        """Notes a step's outcome; returns why it was refused, if it was."""
        if flags.saves and not self._group.is_chief:
            self.saves_at = self._settled + int(flags.saves) - BIAS
        if flags.ends and flags.goes_on and not self.ended:
            self._ending.reach(outcome.number + 1 + BEHIND)
        if self.ended or not flags.goes_on:
            self._revert(outcome)
            self._record_surplus(outcome, index, flags)
            return ""
        self._settled += flags.finite > 0
        if index < outcome.real:
            self.outcomes.record_step(self._settled, flags.loss)
        if flags.finite:
            self.refusals.none()
            return ""
        self._revert(outcome)
        refusal = f"refused a gradient that is not finite (after global step {self._settled}, loss {flags.loss:g})"
        self.refusals.record(refusal)
        return refusal

    def _revert(self, outcome: Outcome) -> None:
        """Notes that a step was not applied."""
        self.step -= 1
        for boundary in self.boundaries:
            boundary.step -= boundary.calls > outcome.number

    def _record_surplus(self, outcome: Outcome, index: int, flags: StepFlags) -> None:
        """Notes that a step came after the end."""
        if index >= outcome.real:
            return
        if self.outcomes.excludes(outcome.number):
            self.steps -= 1
        else:
            self.unused += 1
            self.outcomes.record_unused(self._settled, flags.loss)

    def mark_boundary(self) -> None:
        """Notes this process's position between two calls."""
        self.boundaries.append(Boundary(self.calls, self.step, self.steps))

    def drain(self) -> None:
        """Reads the outcomes of all calls; if the training has ended, joins as many calls as the others make: one of
        them may have learned of the end later.
        """
        self.settle()
        while self._last_input is not None and self.calls < self._ending.until:
            self.dispatch(self._last_input, count=self._per_call, real=0)
        self.settle()

    def end_for_all(self, reason: str) -> None:
        """Makes steps that change nothing until all know that this process has stopped."""
        self._group.check()
        if self._control is not None and not (self.is_settled_over() or self.ended):
            self._ending.publish(reason, self.calls)
            if self._last_input is None:  # it never took part in a step; the others check before their first one
                self._ending.reached = reason
                return
            while not (self.ended or self.is_settled_over()):
                self.dispatch(self._last_input, 1.0, count=self._per_call, real=0)
                self.settle(BEHIND)
        self.drain()

    def finish(self) -> None:
        """Ends the training where it is, for all."""
        self.end_for_all(FINISHED)
        self.settle()
        self.last_step = self.step
