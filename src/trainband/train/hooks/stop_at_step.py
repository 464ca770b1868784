"""StopAtStepHook: the end of a training run."""

from __future__ import annotations

from trainband.train.hooks.base import Hook


class StopAtStepHook(Hook):
    """Ends the training at a global step, for all workers, exactly.

    The parameter servers count: they make exactly this many updates. Only the chief's hook is effective.

    Args:
      num_steps: updates from where the training began (in a resumed run, from where it first began).
      last_step: the global step to end at; give exactly one.

    Raises:
      ValueError: both or neither are given, or the number is negative.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise ValueError("StopAtStepHook: give exactly one of num_steps and last_step.")
        for name, steps in (("num_steps", num_steps), ("last_step", last_step)):
            if steps is not None and steps < 0:
                raise ValueError(f"StopAtStepHook: {name} must be 0 or more, got {steps}.")
        self._num_steps = num_steps
        self._last_step = last_step

    def last_step_from(self, began_at: int) -> int:
        """Returns the global step to end at, for a training run that began at `began_at`."""
        if self._last_step is not None:
            return self._last_step
        assert self._num_steps is not None
        return began_at + self._num_steps
