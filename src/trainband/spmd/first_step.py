"""FirstStep: what the processes of a job compare at the first step of a training run."""

from __future__ import annotations

import jax

from trainband.model.model import Model
from trainband.model.variables import PyTree
from trainband.runtime.waiting import Say
from trainband.spmd.agreement import first_batches, require_one_loss, warn_of_other_params
from trainband.spmd.end_of_training import EndOfTraining
from trainband.spmd.pipeline import Pipeline
from trainband.spmd.process_group import Group
from trainband.spmd.sharded_state import ShardedState, own
from trainband.spmd.step_inputs import StepInputs


class FirstStep:
    """Compares batches before a training run's first step, and params after the job's first.

    Args:
      model: what is trained.
      state: the values.
      group: the processes.
      inputs: places the batches.
      pipeline: makes the steps.
      ending: where a process may report that it makes none.
      say: prints lines for the user.
    """

    def __init__(
        self,
        model: Model,
        state: ShardedState,
        group: Group,
        inputs: StepInputs,
        pipeline: Pipeline,
        ending: EndOfTraining,
        say: Say,
    ) -> None:
        self._model = model
        self._state = state
        self._group = group
        self._inputs = inputs
        self._pipeline = pipeline
        self._ending = ending
        self._say = say
        self._key = ""
        self._has_compared_batches = self._has_compared_params = False

    def start_training(self, training: int) -> None:
        """Begins the training with this number."""
        self._has_compared_batches, self._key = False, f"batch/{training}"

    def compare_batches(self, batch: PyTree) -> None:
        """Compares the first batches, for which all compute one program, unless the training has ended."""
        if self._has_compared_batches or self._pipeline.ended:
            return
        self._has_compared_batches = True
        own_part = self._inputs.sharding.own
        stacks = first_batches(self._group, own_part, batch, self._key, self._ending.key, self._say)
        if not stacks:
            self._ending.reach()
            return
        self._inputs.stacks = all(stacks)
        if not self._has_compared_params:
            require_one_loss(self._group, self._model, self._state.shapes, batch)

    def compare_params(self) -> None:
        """Warns if the processes' params differ after the job's first step."""
        if self._has_compared_params:
            return
        self._has_compared_params = True
        self._pipeline.settle()
        leaves = zip(self._state.variables.trained, jax.tree.leaves(self._state.now.params), strict=True)
        mine = {variable.name: own(leaf) for variable, leaf in leaves if leaf.is_fully_replicated}
        if mine:
            warn_of_other_params(self._group, mine, self._state.broadcast, self._say)
