"""`train_and_evaluate`: trains a model and evaluates it on the way, in one process or as a task of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.tf1.estimators.estimator import Estimator
from trainband.compat.tf1.estimators.run_config import TaskType
from trainband.compat.tf1.estimators.task import server_of
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.training.checkpoint_hook import CheckpointSaverListener
from trainband.compat.tf1.training.session_run_hook import SessionRunContext, SessionRunHook, SessionRunValues
from trainband.runtime.overrides import override

_POLL_S = 1.0
"""How long an evaluator waits before it looks for a new checkpoint again, at least."""


class TrainSpec:
    """What to train with.

    Args:
      input_fn: see `Estimator.train`.
      max_steps: the global step to stop at; `None`: until the inputs end.
      hooks: what happens beside the runs.
      saving_listeners: what happens when a checkpoint is written.
    """

    def __init__(
        self,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        saving_listeners: Any = None,
    ) -> None:
        if not callable(input_fn):
            raise TypeError(f"`input_fn` must be callable, given: {input_fn}")
        if max_steps is not None and max_steps <= 0:
            raise ValueError(f"Must specify max_steps > 0, given: {max_steps}")
        self.input_fn, self.max_steps = input_fn, max_steps
        self.hooks, self.saving_listeners = tuple(hooks or ()), tuple(saving_listeners or ())


class EvalSpec:
    """What to evaluate with.

    Args:
      input_fn: see `Estimator.evaluate`.
      steps: how many batches; `None`: until the inputs end.
      name: of the evaluation.
      hooks: what happens beside the runs.
      exporters: see `Exporter`.
      start_delay_secs: how long an evaluator waits at first.
      throttle_secs: how far apart evaluations are, at least.
    """

    def __init__(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        exporters: Any = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> None:
        if not callable(input_fn):
            raise TypeError(f"`input_fn` must be callable, given: {input_fn}")
        if steps is not None and steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {steps}")
        if start_delay_secs < 0 or throttle_secs < 0:
            raise ValueError("start_delay_secs and throttle_secs must not be negative.")
        self.input_fn, self.steps, self.name = input_fn, steps, name
        self.hooks = tuple(hooks or ())
        several = isinstance(exporters, list | tuple | set | frozenset)
        self.exporters = tuple(exporters) if several else () if exporters is None else (exporters,)
        self.start_delay_secs, self.throttle_secs = start_delay_secs, throttle_secs


def train_and_evaluate(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> Any:
    """Train, and evaluate the checkpoints that are written on the way and at the end.

    In a cluster (`TF_CONFIG`), this process does what its task is for: a ps serves and does not return; the chief and
    the workers train; an evaluator evaluates until a checkpoint has reached `max_steps`. The chief evaluates as well,
    unless the cluster lists an evaluator: launchers leave it out, so it cannot be told whether there is one.

    Returns:
      (the metrics of the last evaluation, what was exported), or `None` on a task that has not evaluated.

    Raises:
      TypeError: an argument is of the wrong kind.
    """
    for one, kind in ((estimator, Estimator), (train_spec, TrainSpec), (eval_spec, EvalSpec)):
        if not isinstance(one, kind):
            raise TypeError(f"train_and_evaluate needs a {kind.__name__}, given: {type(one).__name__}")
    config = estimator.config
    evaluations = _Evaluations(estimator, eval_spec, train_spec.max_steps)
    if config.evaluates_alone:
        return evaluations.follow()
    if config.task_type == TaskType.PS:
        server = server_of(config)
        assert server is not None
        server.join()
    if not config.is_chief:
        estimator.train(train_spec.input_fn, train_spec.hooks, None, train_spec.max_steps, train_spec.saving_listeners)
        return None
    hooks, listeners = list(train_spec.hooks), list(train_spec.saving_listeners)
    evaluates = TaskType.EVALUATOR not in config.cluster_spec.jobs
    if config.master and evaluates:
        hooks.append(_EvaluateNewCheckpoints(evaluations))
    elif evaluates:
        listeners.append(_EvaluateWhatIsSaved(evaluations))
    estimator.train(train_spec.input_fn, hooks, None, train_spec.max_steps, listeners)
    if evaluates:
        evaluations.finish()
    return evaluations.last


class _Evaluations:
    """The evaluations of a training.

    Attributes:
      last: (metrics, exports) of the newest; `None` before there is any.
    """

    def __init__(self, estimator: Estimator, spec: EvalSpec, max_steps: int | None) -> None:
        self._estimator, self._spec, self._max_steps = estimator, spec, max_steps
        self._path: str | None = None
        self._has_ended = False
        self._at = time.monotonic()
        self.last: tuple[dict[str, Any], list[Any]] | None = None

    def now(self, *, is_last: bool = False) -> None:
        """Evaluates the newest checkpoint, unless it has been."""
        path = self._estimator.latest_checkpoint()
        if path is None:
            logging.warning("Estimator is not trained yet. Will start an evaluation when a checkpoint is ready.")
            return
        if path != self._path:
            spec, self._path = self._spec, path
            metrics = self._estimator.evaluate(spec.input_fn, spec.steps, spec.hooks, path, spec.name)
            self.last, self._at = (metrics, []), time.monotonic()
            is_last = is_last or self._reached(metrics)
        elif not is_last or self._has_ended:
            return
        self._has_ended = is_last
        if self.last is not None:
            directory = f"{self._estimator.model_dir}/export"
            exports = [
                one.export(self._estimator, f"{directory}/{one.name}", path, self.last[0], is_last)
                for one in self._spec.exporters
            ]
            self.last = self.last[0], exports

    def if_due(self) -> None:
        """Evaluates the newest checkpoint if the last evaluation is long enough ago."""
        if time.monotonic() >= self._at + self._spec.throttle_secs:
            self.now()
        else:
            logging.info("Skip the current checkpoint eval due to throttle secs (%s secs).", self._spec.throttle_secs)

    @property
    def is_due(self) -> bool:
        """Whether there is a checkpoint that should be evaluated now."""
        if time.monotonic() < self._at + self._spec.throttle_secs:
            return False
        return self._estimator.latest_checkpoint() not in (None, self._path)

    def finish(self) -> None:
        """Evaluates the last checkpoint."""
        self.now(is_last=True)

    def follow(self) -> Any:
        """Evaluates new checkpoints until one has reached the last step."""
        if self._spec.start_delay_secs:
            logging.info("Waiting %f secs before starting eval.", self._spec.start_delay_secs)
            time.sleep(self._spec.start_delay_secs)
        while True:
            self.now()
            if self.last is not None and self._reached(self.last[0]):
                return self.last
            time.sleep(max(_POLL_S, self._at + self._spec.throttle_secs - time.monotonic()))

    def _reached(self, metrics: dict[str, Any]) -> bool:
        return self._max_steps is not None and int(metrics["global_step"]) >= self._max_steps


class _EvaluateWhatIsSaved(CheckpointSaverListener):
    """Evaluates checkpoints as they are saved, but not the one with which a training begins."""

    def __init__(self, evaluations: _Evaluations) -> None:
        self._evaluations = evaluations
        self._is_first = True

    @override
    def after_save(self, session: Any, global_step_value: int) -> None:  # noqa: ARG002
        if self._is_first:
            self._is_first = False
        else:
            self._evaluations.if_due()


class _EvaluateNewCheckpoints(SessionRunHook):
    """Evaluates the checkpoints of a job, which its ps write at their own time."""

    def __init__(self, evaluations: _Evaluations) -> None:
        self._evaluations = evaluations

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        if self._evaluations.is_due:
            self._evaluations.now()
