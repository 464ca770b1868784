"""StepInputs: the inputs of calls, placed where they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
from jax.sharding import Mesh

from trainband.errors import DataError
from trainband.model.batch import Several, owned
from trainband.model.variables import PyTree
from trainband.spmd.batch_sharding import BatchSharding
from trainband.spmd.sharding import is_on_cpu


class StepInputs:
    """Places batches on the mesh.

    Args:
      sharding: of a batch.
      mesh: the devices.
      task: for messages.
      accumulate: micro-batches in a step.
      per_call: steps in a call.
      in_step: whether other processes compute the same calls, which must all be alike.
    """

    def __init__(
        self, sharding: BatchSharding, mesh: Mesh, task: str, *, accumulate: int, per_call: int, in_step: bool
    ) -> None:
        self.sharding = sharding
        self._task = task
        self._accumulate = accumulate
        self._per_call = per_call
        self._in_step = in_step
        on_cpu = is_on_cpu(mesh)
        self._splits = mesh.size > 1 or not on_cpu
        self.stacks = not in_step
        """Whether a call's batches may come as one array: with several processes, if all have NumPy's."""
        # A CPU gains nothing from a batch being there earlier: the step places it.
        self.place: Callable[[PyTree], PyTree] | None = sharding if self._splits and not on_cpu else None
        """Moves a batch to the devices ahead of its step; `None` if steps take it as it is."""

    def of_step(self, batch: PyTree) -> PyTree:
        """Returns the input of a step.

        Raises:
          DataError: the batch cannot be split over the devices.
        """
        if not self._splits:
            return owned(batch)
        return self.sharding(batch) if self._accumulate == 1 else tuple(map(self.sharding, batch))

    def of_call(self, several: Several) -> PyTree:
        """Returns the input of a call's steps.

        Raises:
          DataError: the kind of the batches has changed.
        """
        if self._in_step and self.stacks and several.stack is None:
            raise DataError(
                f"{self._task}: the batches were NumPy arrays at first, but no longer are: workers that compute in "
                "lockstep need one kind of array."
            )
        if self.stacks and several.stack is not None and self._accumulate == 1:
            stack = self.sharding.stacked(several.stack)
            if stack is not None:
                return stack
        return tuple(map(self.of_step, several.batches))

    def several(self, batch: PyTree) -> Several:
        """Checks the input of a call.

        Raises:
          DataError: it is a single batch, or has too few while other processes have more.
        """
        if not isinstance(batch, Several) or not 0 < len(batch.batches) <= self._per_call:
            raise DataError(
                f"{self._task}: with steps_per_execution={self._per_call} a call takes the input of that many steps, "
                "as session.feed(batches) yields it; for single batches leave steps_per_execution out."
            )
        if self._in_step and len(batch.batches) < self._per_call and not batch.last:
            raise DataError(
                f"{self._task}: a batch differs in shape from the one before, but workers that compute in lockstep "
                "need batches of one size. Drop the last, shorter batch of an epoch, or pad it."
            )
        return batch

    def filled_up(self, several: Several) -> Several:
        """Repeats the last batch to fill the steps of a call."""
        missing, stack = self._per_call - len(several.batches), several.stack
        if stack is not None:
            stack = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[-1:], missing, 0)]), stack)
        return replace(several, batches=(*several.batches, *several.batches[-1:] * missing), stack=stack)
