"""Monitors: hooks that `fit` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.tf1.learn.estimator import Estimator
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.training.global_step import needed_step
from trainband.compat.tf1.training.hooks import LoggingTensorHook
from trainband.compat.tf1.training.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from trainband.runtime.overrides import override


class ValidationMonitor(SessionRunHook):
    """Evaluates the newest checkpoint at intervals of steps; may stop the training early.

    Args:
      early_stopping_rounds: after how many steps without a better metric to stop.
      early_stopping_metric_minimize: whether less is better.

    Attributes:
      early_stopped: whether it has.
      best_step, best_value, best_metrics: what was best so far.
    """

    def __init__(
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Callable[..., Any] | None = None,
        batch_size: int | None = None,
        eval_steps: int | None = None,
        every_n_steps: int = 100,
        metrics: Any = None,
        hooks: Any = None,
        early_stopping_rounds: int | None = None,
        early_stopping_metric: str = "loss",
        early_stopping_metric_minimize: bool = True,
        name: str | None = None,
        check_interval_secs: float = 5,  # noqa: ARG002
    ) -> None:
        if x is None and input_fn is None:
            raise ValueError("Either x or input_fn should be provided.")
        self._of_evaluation = {
            "x": x, "y": y, "input_fn": input_fn, "batch_size": batch_size, "steps": eval_steps, "metrics": metrics,
            "hooks": hooks, "name": name,
        }  # fmt: skip
        self._every, self._rounds = every_n_steps, early_stopping_rounds
        self._metric, self._less = early_stopping_metric, early_stopping_metric_minimize
        self._estimator: Estimator | None = None
        self._due = every_n_steps
        self._evaluated: str | None = None
        self.early_stopped = False
        self.best_step: int | None = None
        self.best_value: float | None = None
        self.best_metrics: dict[str, Any] | None = None

    def set_estimator(self, estimator: Estimator) -> None:
        """What it evaluates."""
        self._estimator = estimator

    @override
    def begin(self) -> None:
        self._step = needed_step("ValidationMonitor")

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:  # noqa: ARG002
        return SessionRunArgs(self._step)

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = int(run_values.results)
        if step < self._due or self._estimator is None:
            return
        self._due = step + self._every
        newest = self._estimator.core.latest_checkpoint()
        if newest is None or newest == self._evaluated:
            logging.info("ValidationMonitor: there is no new checkpoint at step %d; save them more often.", step)
            return
        self._evaluated = newest
        found = self._estimator.evaluate(checkpoint_path=newest, **self._of_evaluation)
        logging.info("Validation (step %d): %s", step, ", ".join(f"{name} = {one}" for name, one in found.items()))
        value = float(found[self._metric])
        if self.best_value is None or (value < self.best_value if self._less else value > self.best_value):
            self.best_step, self.best_value, self.best_metrics = step, value, found
        elif self._rounds is not None and step - (self.best_step or 0) >= self._rounds:
            logging.info("Stopping. Best step: %s with %s = %s.", self.best_step, self._metric, self.best_value)
            self.early_stopped = True
            run_context.request_stop()


def PrintTensor(tensor_names: Any, every_n: int = 100, first_n: int = 1) -> LoggingTensorHook:  # noqa: N802
    """Prints tensors at intervals of steps."""
    del first_n
    return LoggingTensorHook(tensor_names, every_n_iter=every_n)


def replace_monitors_with_hooks(monitors_or_hooks: Sequence[Any] | None, estimator: Any) -> list[Any]:
    """Hooks in place of monitors: they are hooks already."""
    del estimator
    return list(monitors_or_hooks or ())
