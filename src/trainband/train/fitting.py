"""Fitting: the part of `Trainer.fit` besides the steps of a training run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from trainband.errors import DataError
from trainband.model.variables import PyTree
from trainband.train.hook_loop import require_hooks
from trainband.train.hooks import EarlyStopping, Hook, StepProfileHook, StopAtStepHook, ValidationHook
from trainband.train.result import Evaluation


class Fitting:
    """The hooks of one call of `Trainer.fit`, made from its arguments.

    Raises:
      DataError: `steps` is not a number of steps, or early stopping has no validation.
    """

    def __init__(
        self,
        steps: int | None,
        hooks: Sequence[Hook],
        validation: Iterable[PyTree] | None = None,
        every: int | None = None,
        early_stopping: EarlyStopping | None = None,
        profile_steps: tuple[int, int] | None = None,
        profile_dir: str | Path | None = None,
    ) -> None:
        require_hooks(hooks)
        if steps is not None and (isinstance(steps, float) or steps < 0):
            raise DataError(f"fit: steps must be a whole number, 0 or more, got {steps!r}.")
        if early_stopping is not None and validation is None:
            raise DataError("fit: early_stopping needs a validation; pass validation=, the batches to evaluate on.")
        self.steps = steps
        """How many updates were requested; `None`: one pass over the batches."""
        self._validating = []
        if validation is not None:
            every = every or max(1, (steps or 1000) // 10)
            self._validating = [ValidationHook(validation, every_steps=every, early_stopping=early_stopping)]
        stop = [] if steps is None else [StopAtStepHook(num_steps=steps)]
        profiling = [] if profile_steps is None else [StepProfileHook(*profile_steps, directory=profile_dir)]
        self.hooks: list[Hook] = [*stop, *self._validating, *hooks, *profiling]
        """The user's hooks, and those for the arguments."""

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The results of the validation."""
        return tuple(evaluation for hook in self._validating for evaluation in hook.evaluations)
