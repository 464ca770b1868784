"""Pipeline: the calls of a training that are under way, and what has become of those before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from trainband.model.variables import PyTree
from trainband.runtime.waiting import Say
from trainband.spmd.control_flags import ControlFlags
from trainband.spmd.end_of_training import EndOfTraining
from trainband.spmd.process_group import Group
from trainband.spmd.refusals import Refusals
from trainband.spmd.report import FINISHED
from trainband.spmd.step_program import StepFlags, StepProgram
from trainband.spmd.values import Values

BEHIND = 1
"""Steps that are under way while the outcome of the one before is looked at. On two cores, small steps are 1.4 times as
many as if each was waited for."""

KNOWN_AFTER = BEHIND + 1
"""Calls after which every process has heard what one has said in a call."""

BIAS = 8
"""Makes the flag about a checkpoint more than 0, also where the step that it is of has just been made."""


class Outcome(NamedTuple):
    """What is looked at of a call, once it is computed: of one step, or of several.

    Attributes:
      number: which call of this training it is, from 0, also of those that change nothing.
      steps: how many it is of.
      real: how many of its steps, from the first, had a batch to train on.
      flags: of each step, see `StepFlags`.
    """

    number: int
    steps: int
    real: int
    flags: jax.Array


@dataclass(slots=True)
class Boundary:
    """Where a process was between two calls.

    Attributes:
      calls: of this training, that were made by then.
      step: the global step, as far as it is known.
      batches: that this process had trained on.
    """

    calls: int
    step: int
    batches: int


class Pipeline:
    """Has calls computed, and looks at their outcomes a call later, so that no device waits for Python.

    Until then, every step counts as applied. Several processes all make the same calls in the same order, and hear of
    the training's end in the same one; one call is under way behind it by then, so a process that ends makes two more,
    on a batch that does not count.

    Args:
      program: of a call.
      values: what it changes.
      group: the processes that compute it.
      control: what this process tells the others with each call; `None` where there are no others.
      ending: why trainings end.
      per_call: steps in a call.
      say: told of refusals.
    """

    def __init__(
        self,
        program: StepProgram,
        values: Values,
        group: Group,
        control: ControlFlags | None,
        ending: EndOfTraining,
        *,
        per_call: int,
        say: Say,
    ) -> None:
        self._program = program
        self._values = values
        self._group = group
        self._control = control
        self._ending = ending
        self._per_call = per_call
        self.announcement: Callable[[], float] = lambda: 0.0
        """What the chief says of its next checkpoint, see `StepFlags.saves`."""
        self.refusals = Refusals(say)
        self.step = 0
        """The global step, if no step that is under way is refused."""
        self.last_step: int | None = 0
        self.steps = 0
        """Batches that this process has trained on."""
        self.loss: Any = None
        self.losses: Any = None
        """The losses of the last call's steps, and of the last one."""
        self.seen_loss: float | None = None
        self._pending: deque[Outcome] = deque()
        self._known: list[tuple[int, float]] = []
        """The global step after each step that was looked at since the last report, and its loss."""
        self._unreported = ""
        """Why a step was refused that no report has spoken of yet."""
        self.begin(0, 0)

    def begin(self, last_step: int | None, training: int) -> None:
        """Begins a training until the global step is `last_step`, which has this number."""
        self._training = training
        self.calls, self._settled, self.last_step = 0, self.step, last_step
        self.ended = ""
        """Why the training has, once this process knows that it has."""
        self.unused = 0
        """Of the last batches, how many changed nothing, because another process had ended the training."""
        self.saves_at: int | None = None
        """The global step of the checkpoint that the chief has announced."""
        self._until = self._surplus = 0
        self._reporting = -1
        self._given: PyTree = None
        self.boundaries: deque[Boundary] = deque([Boundary(0, self.step, self.steps)], maxlen=KNOWN_AFTER + 1)
        self._known, self._unreported = [], ""
        self.refusals.begin()
        self._ending.begin(training)

    @property
    def is_over(self) -> bool:
        """Whether all updates are made, if no step that is under way is refused."""
        return self.last_step is not None and self.step >= self.last_step

    def is_settled_over(self) -> bool:
        """Whether all updates are made, by what is known and not only hoped."""
        if self.is_over:
            self.settle()
        return self.is_over

    def room(self) -> int:
        """How many more updates this training may make, if no step that is under way is refused; at most a call's."""
        return self._per_call if self.last_step is None else min(self._per_call, self.last_step - self.step)

    def dispatch(self, given: PyTree, ends: float = 0.0, *, count: int = 1, real: int = 1) -> PyTree:
        """Has a call computed, as if all its steps were applied; gives the metrics of its last step.

        Args:
          given: what it trains on.
          ends: more than 0 if this process can go no further.
          count: how many steps it makes.
          real: how many of them, from the first, have a batch to train on.
        """
        program = self._program.step if count == 1 else self._program.steps
        values = self._values
        if self._control is None:
            values.now, flags, self.losses, self.loss, metrics = program(values.now, given, None)
        else:
            self._given = given
            control = self._control.next(ends, self.announcement())
            with self._group.watched(self._training, self.calls + 1):
                values.now, flags, self.losses, self.loss, metrics = program(values.now, given, control)
        if not self._program.on_cpu:
            # To begin a copy only when it is looked at cost 0.24 ms a step on an H100 (784-100-10, Adam): 1,600 steps/s
            # in place of 3,380.
            flags.copy_to_host_async()
        self._pending.append(Outcome(self.calls, count, real, flags))
        self.step += count
        self.calls += 1
        return metrics

    # --- outcomes

    def settle(self, behind: int = 0) -> None:
        """Looks at what became of the calls, but for so many."""
        while len(self._pending) > behind:
            outcome = self._pending.popleft()
            for index, flags in enumerate(self._flags_of(outcome)):
                self._unreported = self._note(outcome, index, flags) or self._unreported

    def _flags_of(self, outcome: Outcome) -> list[StepFlags]:
        """What came of each step; waits until all are computed."""
        rows: Any
        if self._control is None:
            rows = np.asarray(outcome.flags).tolist()
        else:
            with self._group.watched(self._training, self.calls):
                rows = np.asarray(outcome.flags).tolist()
            self._group.settled()
        return [StepFlags(*rows)] if outcome.steps == 1 else [StepFlags(*row) for row in rows]

    def _note(self, outcome: Outcome, index: int, flags: StepFlags) -> str:
        """Why a step was refused; empty if it was not."""
        if flags.saves and not self._group.is_chief:
            self.saves_at = self._settled + int(flags.saves) - BIAS
        if flags.ends and flags.goes_on and not self.ended:
            self.ended = self._ending.why()
            self._until = outcome.number + 1 + BEHIND
        if self.ended or not flags.goes_on:
            self._take_back(outcome)
            self._leave_out(outcome, index, flags)
            return ""
        self._settled += flags.finite > 0
        if index < outcome.real:
            self.seen_loss = flags.loss
            self._known.append((self._settled, flags.loss))
        if flags.finite:
            self.refusals.none()
            return ""
        self._take_back(outcome)
        refusal = f"refused a gradient that is not finite (after global step {self._settled}, loss {flags.loss:g})"
        self.refusals.note(refusal)
        return refusal

    def _take_back(self, outcome: Outcome) -> None:
        """Notes that a step was not applied."""
        self.step -= 1
        for boundary in self.boundaries:
            boundary.step -= boundary.calls > outcome.number

    def _leave_out(self, outcome: Outcome, index: int, flags: StepFlags) -> None:
        """Notes that a step came after the end."""
        if index >= outcome.real:
            return
        if outcome.number == self._reporting:
            self._surplus += 1
            self.steps -= 1
        else:
            self.unused += 1
            self._known.append((self._settled, flags.loss))

    def begin_report(self) -> None:
        """From now on, the next call is the one that a report is made of."""
        self._reporting, self._surplus = self.calls, 0

    def end_report(self) -> int:
        """How many steps of that call came after the end."""
        self._reporting = -1
        return self._surplus

    def take_known(self) -> Sequence[tuple[int, float]]:
        """What has become known of steps since the last report; gives each once."""
        known, self._known = self._known, []
        return known

    def take_refusal(self) -> str:
        """Why a step was refused that no report has spoken of yet; empty if none was."""
        refusal, self._unreported = self._unreported, ""
        return refusal

    def mark_boundary(self) -> None:
        """Notes where this process is between two calls."""
        self.boundaries.append(Boundary(self.calls, self.step, self.steps))

    # --- the end

    def drain(self) -> None:
        """Looks at the outcomes of all calls, and takes part in as many as all others do, where that is found to be the
        end: one of them may have learned it later.
        """
        self.settle()
        while self._given is not None and self.calls < self._until:
            self.dispatch(self._given, count=self._per_call, real=0)
        self.settle()

    def end_for_all(self, reason: str) -> None:
        """Takes part in steps that change nothing, until all know that this process goes no further."""
        self._group.check()
        if self._control is not None and not (self.is_settled_over() or self.ended):
            self._ending.tell(reason, self.calls)
            if self._given is None:  # it never took part in a step; the others look before their first one
                self.ended = reason
                return
            while not (self.ended or self.is_settled_over()):
                self.dispatch(self._given, 1.0, count=self._per_call, real=0)
                self.settle(BEHIND)
        self.drain()

    def finish(self) -> None:
        """Ends the training where it is, for all."""
        self.end_for_all(FINISHED)
        self.settle()
        self.last_step = self.step
